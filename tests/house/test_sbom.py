"""The list of packages that `make sbom` writes: (1) it is CycloneDX, and names Palaestra and each package that it
needs, with the version that is installed and a license; (2) it says what requires what.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import palaestra
from tests.extras import needs
from tests.house.source_text import ROOT, project

pytestmark = needs("cyclonedx_py")
CORE = [canonicalize_name(Requirement(line).name) for line in project()["project"]["dependencies"]]


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The list that `make sbom` makes of the packages that run this test."""
    folder, environment = tmp_path_factory.mktemp("dist"), Path(sys.prefix)
    installed = environment / ".dev-installed"
    command = ["make", "sbom", f"VENV={environment}", f"DIST={folder}", "-o", str(installed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    (made,) = folder.iterdir()
    assert made.name == f"palaestra-{palaestra.__version__}.cdx.json"
    return json.loads(made.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def test_each_package_has_a_version_and_a_license(listed: dict[str, Any]) -> None:  # rule 1
    ours = listed["metadata"]["component"]
    assert listed["bomFormat"] == "CycloneDX"
    assert (ours["name"], ours["version"]) == ("palaestra", palaestra.__version__)
    assert ours["licenses"][0]["license"]["id"] == "Apache-2.0"
    found = {canonicalize_name(one["name"]): one for one in listed["components"]}
    assert not set(CORE) - found.keys()
    for name in CORE:
        assert found[name]["version"] == metadata.version(name), name
        assert found[name]["purl"].startswith("pkg:pypi/"), name
        licenses = found[name]["licenses"]
        assert licenses and all(one.get("expression") or named(one["license"]) for one in licenses), name


def named(told: dict[str, Any]) -> str:
    """A license in SPDX's words, or else its name or its text."""
    return str(told.get("id") or told.get("name") or told["text"]["content"])


def test_it_says_what_requires_what(listed: dict[str, Any]) -> None:  # rule 2
    requires = {one["ref"]: one.get("dependsOn", []) for one in listed["dependencies"]}
    of_ours = requires[listed["metadata"]["component"]["bom-ref"]]
    assert {"torch", "h11"} <= {canonicalize_name(ref.partition("==")[0]) for ref in of_ours}
