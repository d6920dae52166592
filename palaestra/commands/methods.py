"""`palaestra methods`: lists, searches and describes systems and parts. It reads source text and imports no part."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.table import Table

from palaestra.catalogue import Declaration, Study, System, declarations, heads, search, studies, system, systems
from palaestra.catalogue.findings import Results
from palaestra.catalogue.formulas import in_a_terminal
from palaestra.catalogue.status import LEVELS
from palaestra.catalogue.studies import trained_with
from palaestra.catalogue.systems import FAMILIES
from palaestra.commands.tables import console
from palaestra.errors import RecipeError, UnknownName, nearest
from palaestra.evaluation.tables import cell
from palaestra.process.terminal import say
from palaestra.recipe.sources import packaged
from palaestra.registry import SLOTS, index
from palaestra.registry.column_names import ability_of
from palaestra.registry.source_search import PACKAGE

WIDTH = 80  # columns


def run(
    *,
    name: str | None,
    slot: str | None,
    without: str | None,
    family: str | None = None,
    find: str | None = None,
    status: bool = False,
) -> None:
    """Print the description of one system, a line for each system, or the parts of a slot.

    Args:
        name: a name, an alias or an arXiv number; None: list.
        slot: list the parts of this slot. Parts of other installed packages are listed too.
        without: list parts, without those that read this column or use this ability.
        family: list only the systems of this family.
        find: list only the systems whose texts hold these words, the best first.
        status: count the systems by status, and list what is absent.

    Raises: UnknownName, if there is no such system, slot or family; RecipeError, for options that do not go together.
    """
    _refuse_together(name, {"--slot": slot, "--without": without}, {"--family": family, "--find": find}, status)
    if slot is not None and slot not in SLOTS:
        raise UnknownName(where="--slot", what=f"there is no slot `{slot}`.", options=nearest(slot, SLOTS) or SLOTS)
    if family is not None and family not in FAMILIES:
        raise UnknownName(where="--family", what=f"there is no family `{family}`.", options=FAMILIES)
    faults: list[str] = []
    if name is not None:
        print(_described(system(name)), flush=True)
    elif slot is not None or without is not None:
        console().print(_parts([slot] if slot else list(SLOTS), without))
    elif status:
        print("\n".join(_counted(systems(faults=faults))), flush=True)
    else:
        known = [each for each in systems(faults=faults) if family is None or family in each.family]
        print("\n".join(_listed(known if find is None else search(find, known), indents=find is None)), flush=True)
    for fault in faults:
        say(fault)


def _refuse_together(
    name: str | None, of_parts: Mapping[str, str | None], of_systems: Mapping[str, str | None], status: bool
) -> None:
    """Refuse options of which one would have no effect. A name, parts, systems and counts exclude each other."""
    kinds = ({"NAME": name}, of_parts, of_systems, {"--status": "" if status else None})
    chosen = [[word for word, value in kind.items() if value is not None] for kind in kinds]
    given = [words[0] for words in chosen if words]
    if len(given) > 1:
        raise RecipeError(
            where="palaestra methods",
            what=f"{given[0]} and {given[1]} do not go together.",
            remedy="Give a name, or --slot and --without for parts, or --family and --find for systems, or --status.",
        )


# ---- listings -----------------------------------------------------------------------------------------------
def _listed(found: Sequence[System], *, indents: bool) -> Iterator[str]:
    """A line for each system: name, status, title and first family. A variant is indented below its system."""
    if not found:
        yield "No system has these words. `palaestra methods` lists all."
        return
    wide = max(len(each.name) + 2 * each.variant for each in found)
    for each in found:
        name = f"{'  ' * (each.variant and indents)}{each.name}"
        family = f" [{each.family[0]}]" if each.family and not each.variant else ""
        title = _cut(each.title, WIDTH - wide - 11 - len(family))
        yield f"{name:<{wide}}  {each.status:<7}  {title}{family}"
    counts = Counter(each.variant for each in found)
    yield f"\nsystems: {counts[False]}, variants: {counts[True]}. One of them: palaestra methods NAME."
    yield "Fewer: --find TEXT, --family NAME. Parts: --slot SLOT. How far: --status."


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"


def _counted(found: Sequence[System]) -> Iterator[str]:
    """How many systems there are of each status, and what of their papers is scripted or absent."""
    whole = [each for each in found if not each.variant]
    for level, meaning in LEVELS.items():
        names = [each.name for each in whole if each.status == level]
        yield f"{level:<8} {len(names):>3}  {meaning}"
        yield from _wrapped(", ".join(names), indent=14)
    for state in ("scripted", "absent"):
        parts = [(each.name, part, line) for each in whole for part, where in each.paper.items()
                 for kind, line in where.items() if kind == state]  # fmt: skip
        yield f"{state:<8} {len(parts):>3}  parts of papers"
        for name, part, line in parts:
            yield from _wrapped(f"{name}, {part}: {line}", indent=14, hanging=2)
    silent = [each.name for each in whole if not each.paper]
    if silent:
        yield f"{'unknown':<8} {len(silent):>3}  systems do not say of what parts their paper consists"


def _wrapped(text: str, *, indent: int, hanging: int = 0) -> list[str]:
    spaces = " " * indent
    return textwrap.wrap(text, WIDTH, initial_indent=spaces, subsequent_indent=spaces + " " * hanging)


# ---- one system ---------------------------------------------------------------------------------------------
def _described(each: System) -> str:
    """Everything about a system: what it is, its formula, its parts with their options, its studies, its commands."""
    run_in = [study for study in studies(PACKAGE.parent) if each.name in study.methods]
    blocks = [
        _head(each),
        _prose(each.text),
        _formulas(each),
        _wrapped(f"When: {each.when}", indent=0) if each.when else [],
        _paper(each),
        _options(each),
        _findings(each, run_in),
        _commands(each, run_in),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _head(each: System) -> list[str]:
    lines = _wrapped(each.title + (f" (arXiv {each.arxiv})" if each.arxiv else ""), indent=0)
    lines += _wrapped(f"also: {', '.join(each.aliases)}", indent=0) if each.aliases else []
    lines += [f"family: {', '.join(each.family)}"] if each.family else []
    others = [other.name for other in systems(faults=[]) if other.folder == each.folder and other.name != each.name]
    lines += _wrapped(f"related: {', '.join(others)}", indent=0) if others else []
    return [*lines, f"status: {each.status} ({LEVELS[each.status]})"]


def _prose(text: str) -> list[str]:
    """A docstring in lines of this width; indented blocks stay as they are."""
    blocks = text.strip().split("\n\n")
    lines = [block.splitlines() if block.startswith(" ") else _wrapped(block, indent=0) for block in blocks]
    return "\n\n".join("\n".join(block) for block in lines).splitlines()


def _formulas(each: System) -> list[str]:
    lines = [line for formula in each.formulas for line in _wrapped(in_a_terminal(formula), indent=4, hanging=4)]
    for symbol, meaning in each.symbols.items():
        lines += _wrapped(f"{in_a_terminal(symbol)}: {meaning}", indent=6, hanging=2)
    return lines


def _paper(each: System) -> list[str]:
    if not each.paper:
        return []
    lines = ["parts of the paper"]
    for part, where in each.paper.items():
        for state, line in where.items():
            lines += _wrapped(f"{part:<12} {state:<9} {line}", indent=2, hanging=23)
    return lines


def _options(each: System) -> list[str]:
    """Each part with all its options: name, default, meaning."""
    known = {(part.slot, part.name): part for part in heads(*each.parts)} if each.parts else {}
    lines = ["parts"] if each.parts else []
    for slot, names in each.parts.items():
        for name in names:
            head = known.get((slot, name))
            lines += _wrapped(f"{slot}: {name}" + (f"  {head.summary}" if head else ""), indent=2, hanging=4)
            for part in declarations(only=head.target) if head else ():
                if (part.slot, part.name) == (slot, name):
                    lines += _option_lines(part)
    return lines


def _option_lines(part: Declaration) -> Iterator[str]:
    for option in part.options:
        default = "required" if option.default is None else f"= {option.default}"
        yield from _wrapped(f"{option.name} {default}  {option.text}", indent=6, hanging=4)


def _findings(each: System, run_in: Iterable[Study]) -> list[str]:
    """What studies of a system found, each claim with its numbers, and where the results lie."""
    lines = []
    for study in run_in:
        results = Results.read(PACKAGE.parent, study)
        if results is None:
            lines += _wrapped(f"{study.name}: not run yet", indent=2, hanging=2)
            continue
        verdict = results.verdict_on(each) or results.verdict
        folder = results.folder.relative_to(PACKAGE.parent)
        lines += _wrapped(f"{study.name}: {verdict} ({folder})", indent=2, hanging=2)
        for finding in results.findings():
            numbers = f", {finding.final}" if finding.final else ""
            lines += _wrapped(f"{finding.claim}: {finding.outcome}{numbers}", indent=6, hanging=2)
    return ["studies (final value, 95 % interval)", *lines] if lines else []


def _commands(each: System, run_in: Sequence[Study]) -> list[str]:
    words = trained_with(each, run_in)
    lines = [f"train it:   palaestra train {shlex.join(words)}"] if words else []
    lines += [f"run it:     palaestra run {each.played}"] if each.played else []
    lines += [f"compare it: {study.command}" for study in run_in]
    if not run_in and each.overlay and words and "advantage" in each.parts:  # the second arm differs in the estimator
        others = [word for word in words[1:] if word != each.overlay]
        both = shlex.join([words[0], each.overlay, *others])
        lines.append(f'compare it: palaestra compare {both} --arm "grpo: {each.overlay} advantage=grpo"')
    used = [name for name, path in packaged().items() if _uses(path.read_text(encoding="utf-8"), each)]
    return [*lines, *_wrapped(f"recipes with it: {', '.join(used)}", indent=0, hanging=2)] if used else lines


def _uses(text: str, each: System) -> bool:
    """Whether the text of a recipe names the overlay of a system, or a part that is the system's own."""
    if each.overlay is not None and each.overlay in text:
        return True
    own = [
        name
        for slot, names in each.parts.items()
        for name in names
        if name == each.name or f".systems.{each.folder}" in index()[slot].get(name, "")
    ]
    written = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return any(re.search(rf"^\w+:.*\b{name}\b", written, re.MULTILINE) for name in own)


# ---- parts --------------------------------------------------------------------------------------------------
def _parts(slots: list[str], without: str | None) -> Table:
    table = Table("slot", "part", "reads", "uses", "source", "", title="Parts", title_justify="left", box=None)
    known = {(part.slot, part.name): part for part in heads(*slots)}
    for slot in slots:
        for name, target in sorted(index()[slot].items()):
            part = known.get((slot, name))
            if part is None:  # of another package
                table.add_row(slot, cell(name), "", "", cell(target), "")
            elif without is None or without not in _needs(part):
                table.add_row(slot, name, ", ".join(part.reads), ", ".join(part.uses), part.source, part.summary)
    return table


def _needs(part: Declaration) -> set[str]:
    """The columns and abilities that a part needs, and the abilities that these columns come from."""
    return {*part.reads, *part.uses, *(ability for column in part.reads if (ability := ability_of(column)))}
