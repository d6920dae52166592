"""Selection: which rows stay in the update. Floor 2."""

from palaestra.selection.constant_groups import constant_groups
from palaestra.selection.everything import everything

__all__ = ["constant_groups", "everything"]
