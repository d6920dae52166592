"""The catalogue: which parts and methods there are, and every text that is generated from them.

Knows the source text of the package, `catalogue.yaml` and the documentation folder. Imports neither torch nor
any room of the package: parts are found by reading their decorators, so that listing them costs nothing.
"""

from __future__ import annotations

from palaestra.catalogue.generate import write
from palaestra.catalogue.methods import Method, methods
from palaestra.catalogue.places import resource
from palaestra.catalogue.scan import Declaration, Option, build_index, declarations
from palaestra.catalogue.studies import Study, studies

__all__ = [
    "Declaration",
    "Method",
    "Option",
    "Study",
    "build_index",
    "declarations",
    "methods",
    "resource",
    "studies",
    "write",
]
