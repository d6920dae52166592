"""The catalogue lists systems, parts, environments and studies. It reads their text and imports none of them."""

from __future__ import annotations

from palaestra.catalogue.scan import Declaration, Option, declarations, heads
from palaestra.catalogue.studies import Study, studies
from palaestra.catalogue.systems import System, search, system, systems

__all__ = [
    "Declaration",
    "Option",
    "Study",
    "System",
    "declarations",
    "heads",
    "search",
    "studies",
    "system",
    "systems",
]
