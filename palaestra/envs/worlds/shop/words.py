"""The words of the shop: departments with the products that they sell, and a second vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from palaestra.envs.kit.words import Vocabulary

VocabularyName = Literal["plain", "renamed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Department:
    """The types of products of a department, the attributes that they may have, and their options with all values."""

    types: tuple[str, ...]
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]


DEPARTMENTS: dict[str, Department] = {
    "clothing": Department(
        types=("shirt", "jacket", "scarf", "dress"),
        attributes=("cotton", "woolen", "striped", "soft", "slim", "warm", "washable", "lined"),
        options={"size": ("small", "medium", "large"), "color": ("red", "blue", "green", "black")},
    ),
    "kitchen": Department(
        types=("kettle", "pan", "mug", "bowl"),
        attributes=("steel", "glazed", "light", "stackable", "insulated", "nonstick", "handmade", "deep"),
        options={"pack": ("single", "pair", "dozen"), "color": ("red", "white", "black", "yellow")},
    ),
    "electronics": Department(
        types=("lamp", "speaker", "camera", "clock"),
        attributes=("wireless", "portable", "bright", "quiet", "waterproof", "foldable", "smart", "compact"),
        options={"plug": ("round", "flat", "usb"), "color": ("white", "black", "silver", "blue")},
    ),
    "furniture": Department(
        types=("chair", "desk", "shelf", "stool"),
        attributes=("wooden", "padded", "folding", "sturdy", "adjustable", "low", "carved", "narrow"),
        options={"finish": ("matte", "glossy", "natural"), "color": ("brown", "white", "gray", "green")},
    ),
}

RENAMED = """
    search=find click=press back=return buy=order next=forward previous=backward
    shirt=blouse jacket=coat scarf=shawl dress=gown
    cotton=linen woolen=fleecy striped=banded soft=gentle slim=tight warm=cozy
    washable=cleanable lined=quilted
    kettle=boiler pan=skillet mug=cup bowl=basin
    steel=metal glazed=enameled light=weightless stackable=nesting deep=roomy
    insulated=thermal nonstick=slippery handmade=crafted
    lamp=lantern speaker=radio camera=webcam clock=timer
    wireless=cordless portable=mobile bright=shiny quiet=silent waterproof=sealed
    foldable=bendable smart=clever compact=tiny
    chair=seat desk=table shelf=rack stool=bench
    wooden=timber padded=cushioned folding=hinged sturdy=solid adjustable=flexible
    low=short carved=engraved narrow=thin
    size=fit small=little medium=middle large=big
    pack=bundle single=one pair=two dozen=twelve
    plug=socket round=circular flat=level usb=cable
    finish=surface matte=dull glossy=polished natural=raw
    color=shade red=crimson blue=azure green=olive black=ebony white=ivory
    yellow=amber silver=chrome brown=chestnut gray=slate
"""  # plain word=new word


VOCABULARIES: dict[VocabularyName, Vocabulary] = {
    "plain": Vocabulary(),
    "renamed": Vocabulary(dict(pair.split("=") for pair in RENAMED.split())),
}
