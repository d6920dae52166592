"""Reference pages: one for each slot with its parts, the table of systems, and the commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from site_pages.markdown import anchor, code, prose, source, table

from palaestra import registry
from palaestra.catalogue import Declaration, Option, System
from palaestra.catalogue.systems import FAMILIES
from palaestra.registry import SLOTS
from palaestra.registry.options import kind_in_words


def slot_page(slot: str, parts: Sequence[Declaration]) -> str:
    """The page of one slot: what it is for, then every part with its options."""
    head = f"# {slot.capitalize()} parts\n\n{SLOTS[slot].capitalize()}.\n"
    if not parts:
        return head + "\nThis slot has no part yet.\n"
    overview = table(("part", "summary"), ((f"[`{p.name}`](#{anchor(p.name)})", prose(p.summary)) for p in parts))
    return "\n".join([head, overview, *(_part_section(part) for part in parts)])


def _part_section(part: Declaration) -> str:
    facts = [f"`{part.target}`"]
    facts += [f"reads `{', '.join(part.reads)}`"] if part.reads else []
    facts += [f"uses `{', '.join(part.uses)}`"] if part.uses else []
    facts += [source(part.source)] if part.source else []
    notes = [f"*{heading}:* {prose(text)}\n" for heading, text in part.notes.items() if text]
    body = _body(part.body)
    kinds = registry.part(part.slot, part.name).options.model_fields
    rows = [(f"`{o.name}`", code(kind_in_words(kinds[o.name])), _default(o), prose(o.text)) for o in part.options]
    options = table(("option", "kind", "default", "meaning"), rows) if rows else "No options.\n"
    pieces = [f"## {part.name}\n", prose(part.summary) + "\n", " · ".join(facts) + "\n", body, options, *notes]
    return "\n".join(piece for piece in pieces if piece)


def _default(option: Option) -> str:
    return "required" if option.default is None else code(option.default)


def _body(text: str) -> str:
    """Prose with its indented blocks, which are formulas, kept as they are."""
    lines = [line if line.startswith("    ") else prose(line) for line in text.splitlines()]
    return "\n".join(lines).strip("\n") + "\n" if text.strip() else ""


MARK = "<!-- made: systems by family -->"


def families_list(systems: Iterable[System]) -> str:
    """A bullet for each family: what it is about, and its systems."""
    known = [each for each in systems if not each.variant]
    lines = []
    for family, meaning in FAMILIES.items():
        links = [f"[{each.title}](methods/{each.name}.md)" for each in known if family in each.family]
        lines += [f"- **{family}** ({meaning}): {', '.join(links)}."] if links else []
    return "\n".join(lines)


def systems_page(systems: Iterable[System]) -> str:
    """All systems as one table."""
    rows = [
        (
            _title(each),
            ", ".join(each.family),
            _composition(each),
            _recipe(each),
            _comparison(each),
            prose(_status(each)),
        )
        for each in systems
    ]
    text = "A system names the parts that differ from the base, and leaves the rest neutral.\n"
    head = "# Methods\n"
    return "\n".join([head, text, table(("system", "family", "parts", "recipe", "comparison", "status"), rows)])


def _status(system: System) -> str:
    return f"{system.status}: {system.findings}" if system.findings else system.status


def _title(system: System) -> str:
    name = f"[{system.title}](methods/{system.name}.md)"
    return f"{name} ({source('arXiv ' + system.arxiv)})" if system.arxiv else name


def _composition(system: System) -> str:
    links = (
        f"{slot}: " + ", ".join(f"[`{name}`](parts/{slot}.md#{anchor(name)})" for name in names)
        for slot, names in system.parts.items()
    )
    return "<br>".join(links)


def _recipe(system: System) -> str:
    return "<br>".join(f"`{name}`" for name in (system.recipe, system.overlay) if name) or "–"


def _comparison(system: System) -> str:
    return f"`{system.evidence}`" if system.evidence else "–"


def commands_page(command: Any) -> str:
    """The command line's help, from its tree of click or typer commands."""
    head = "# Command line\n"
    shown = {name: sub for name, sub in sorted(getattr(command, "commands", {}).items()) if not sub.hidden}
    return "\n".join([head, _help(command), *(_command(name, sub) for name, sub in shown.items())])


def _command(name: str, command: Any) -> str:
    usage = " ".join(p.name.upper() for p in command.params if p.param_type_name == "argument")
    rows = [
        (
            code(", ".join([*p.opts, *p.secondary_opts]) if p.param_type_name == "option" else p.name.upper()),
            _meaning(p),
        )
        for p in command.params
        if not getattr(p, "hidden", False) and p.name != "help"
    ]
    parameters = table(("parameter", "meaning"), rows) if rows else ""
    return "\n".join(
        [f"## palaestra {name}\n", f"    palaestra {name} {usage}".rstrip() + "\n", _help(command), parameters]
    )


def _help(command: Any) -> str:
    return prose((command.help or "").partition("\f")[0].strip()) + "\n"


def _meaning(parameter: Any) -> str:
    text = prose(getattr(parameter, "help", None) or "")
    default = getattr(parameter, "default", None)
    plain = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    return f"{text} Default: {code(str(default))}." if plain else text
