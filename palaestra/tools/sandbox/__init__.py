"""Where code that a model wrote runs: one protocol, several back ends, each saying what it stops."""

from palaestra.tools.sandbox.protocol import Execution, Guarantees, Sandbox, Threat

__all__ = ["Execution", "Guarantees", "Sandbox", "Threat"]
