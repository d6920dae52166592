"""The page of recipe keys: kinds and defaults come from the settings, meanings from keys.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from site_pages.markdown import code, table

from palaestra.registry import Section
from palaestra.registry.bound import BoundPart
from palaestra.registry.options import kind_in_words
from palaestra.training.settings import PART_SLOTS, RunSettings

MEANINGS: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
HEAD = """# Recipe keys

These are all keys that a recipe may have. [Recipes](recipes.md) shows how to write, combine and override them. Where
the kind is a slot, its page lists the parts that may stand there, with their options.
"""
TITLES = {"": "Top level", "agents.*": "agents.&lt;role&gt;", "policies.*": "policies.&lt;policy&gt;"}


def sections(model: type[Section] = RunSettings, place: str = "") -> Iterator[tuple[str, type[Section]]]:
    """Every section of a recipe with its dotted place, `*` standing for a name: the top level first."""
    yield place, model
    for key, field in model.model_fields.items():
        below = _section(field.annotation)
        if below is not None:
            named = get_origin(field.annotation) is dict
            yield from sections(below, f"{place}.{key}".strip(".") + (".*" if named else ""))


def keys_page() -> str:
    """A table for each section: key, kind, default and meaning."""
    pieces = [HEAD]
    for place, model in sections():
        rows = [
            (code(key), _kind(place, key, field), _default(field), MEANINGS[place][key])
            for key, field in model.model_fields.items()
        ]
        title = TITLES.get(place, place.replace("*", "&lt;role&gt;"))
        pieces += [f"## {title}\n", table(("key", "kind", "default", "meaning"), rows)]
    return "\n".join(pieces)


def _section(annotation: Any) -> type[Section] | None:
    """The section that a field holds, itself or as the values of a dict."""
    kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
    return next((kind for kind in kinds if issubclass(kind, Section) and kind is not BoundPart), None)


def _kind(place: str, key: str, field: Any) -> str:
    path = f"{place}.{key}".strip(".")
    if path in PART_SLOTS:
        slot = PART_SLOTS[path]
        return f"[{slot}](parts/{slot}.md)" + (", a list" if get_origin(field.annotation) is list else "")
    if _section(field.annotation) is not None:
        return "sections by name" if get_origin(field.annotation) is dict else "section"
    return code(kind_in_words(field))


def _default(field: Any) -> str:
    """The default as a recipe writes it; empty for sections, whose keys have defaults of their own."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, dict) or (isinstance(value, Section) and not isinstance(value, BoundPart)):
        return ""
    return code(json.dumps(_written(value)).strip('"'))


def _written(value: Any) -> Any:
    if isinstance(value, BoundPart):
        return {value.name: dict(value.options)} if value.options else value.name
    return [_written(each) for each in value] if isinstance(value, list) else value
