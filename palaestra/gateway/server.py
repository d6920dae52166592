"""What `palaestra serve` needs before it starts the gateway: its packages, its secret and its rules."""

from __future__ import annotations

import importlib

from palaestra.errors import missing_extra
from palaestra.gateway.app import HEALTH
from palaestra.gateway.limits import ServerLimits
from palaestra.http.rules import Rules

TOKEN = "PALAESTRA_SERVE_TOKEN"  # the environment variable with the secret of a server


def refuse_missing() -> None:
    """Raises: MissingExtra, if a package of the server is not installed."""
    for package in ("fastapi", "uvicorn"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise missing_extra(package, extra="serve", needed_for="the gateway") from error


def rules_of(limits: ServerLimits, *, secret: str = "") -> Rules:
    """The rules of a server with these limits. How busy it is, `/health` tells without the secret."""
    return Rules(secret=secret, open_paths=(HEALTH,), limits=limits.of_connections())
