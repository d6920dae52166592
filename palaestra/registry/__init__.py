"""What a part is, and how it is found by its slot and name."""

from palaestra.registry.declaration import (
    Part,
    declared,
    declaring,
    holds,
    ignored,
    register,
    registration,
)
from palaestra.registry.lookup import (
    index,
    names,
    part,
)
from palaestra.registry.options import (
    AtMost,
    Columns,
    Count,
    Degrees,
    Discount,
    File,
    Files,
    Fraction,
    NonNegative,
    OptionGroup,
    Positive,
    PositiveInt,
    Scale,
    Section,
    Singleton,
    Unit,
    ZeroVariance,
    check_options,
)
from palaestra.registry.slots import DECLARED as DECLARED
from palaestra.registry.slots import SINGLE as SINGLE
from palaestra.registry.slots import SLOTS as SLOTS
from palaestra.registry.slots import STAGES as STAGES

__all__ = [
    "AtMost",
    "Columns",
    "Count",
    "Degrees",
    "Discount",
    "File",
    "Files",
    "Fraction",
    "NonNegative",
    "OptionGroup",
    "Part",
    "Positive",
    "PositiveInt",
    "Scale",
    "Section",
    "Singleton",
    "Unit",
    "ZeroVariance",
    "check_options",
    "declared",
    "declaring",
    "holds",
    "ignored",
    "index",
    "names",
    "part",
    "register",
    "registration",
]
