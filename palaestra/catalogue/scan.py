"""Parts, read from the source text of the package.

Nothing of what is read is imported, so that a part whose optional packages are missing is listed all the same.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from palaestra.index import PACKAGE, module_of, registrations
from palaestra.registry import SLOTS

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
SECTIONS = re.compile(r"^(Args|Returns|Raises|Yields|Differs from the authors' code|Attributes):\s*(.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One keyword-only parameter: what a recipe may set."""

    name: str
    kind: str
    default: str | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What the source text says of one part. `target` is `module:attribute`; `abilities` are an environment's."""

    slot: str
    name: str
    target: str
    reads: tuple[str, ...]
    uses: tuple[str, ...]
    source: str
    extra: str
    abilities: tuple[str, ...]
    summary: str
    body: str
    notes: dict[str, str]
    options: tuple[Option, ...]


def declarations(package: Path = PACKAGE, *, only: str = "") -> list[Declaration]:
    """Every part of the package with its options, in the order of slots and then of names.

    Args:
        only: a `module:attribute`: the parts of its module alone.
    """
    files = dict.fromkeys(path for path, _ in registrations(package))
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in files
        if module_of(path, package) == (only.partition(":")[0] or module_of(path, package))
    }
    return _sorted(part for path, text in texts.items() for part in _parts_of(text, module_of(path, package)))


def heads(*slots: str, package: Path = PACKAGE) -> list[Declaration]:
    """The parts of these slots, or all, without their options: what a list shows, in a tenth of the time.

    Only a part's decorator, signature and docstring are read.
    """
    found = []
    for path, match in registrations(package):
        if not slots or match["slot"] in slots:
            read = _parts_of(_head(match), module_of(path, package))
            found += [part for part in read if (part.slot, part.name) == (match["slot"], match["name"])]
    return _sorted(found)


def _sorted(found: Iterable[Declaration]) -> list[Declaration]:
    order = list(SLOTS)
    return sorted(found, key=lambda part: (order.index(part.slot) if part.slot in order else -1, part.name))


def _head(match: re.Match[str]) -> str:
    """Source text of a registration up to the end of its docstring; the whole file where it has none."""
    text, opening = match.string, match.string.find('"""', match.end())
    closing = text.find('"""', opening + 3)
    between = text[match.end() : opening]
    if opening < 0 or closing < 0 or re.search(r"^(?:@|async def|def|class)\b", between, re.MULTILINE):
        return text
    return text[match.start() : closing + 3] + "\n"


def _parts_of(text: str, module: str) -> Iterator[Declaration]:
    for node in ast.parse(text).body:
        if isinstance(node, Definition):
            for decorator in node.decorator_list:
                if is_registration(decorator):
                    yield _declaration(node, decorator, module)


def is_registration(node: ast.AST) -> bool:
    """Whether this is a call `register("slot", "name", …)`."""
    return (
        isinstance(node, ast.Call)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) == "register"
        and len(node.args) == 2
        and all(isinstance(a, ast.Constant) and isinstance(a.value, str) for a in node.args)
    )


def _declaration(node: Definition, decorator: ast.expr, module: str) -> Declaration:
    assert isinstance(decorator, ast.Call)
    shown = ("reads", "uses", "source", "extra")
    declared = {keyword.arg: _plain(keyword.value) for keyword in decorator.keywords if keyword.arg in shown}
    summary, body, notes, texts = read_docstring(ast.get_docstring(node) or "")
    constructor = _constructor(node)
    if constructor is not None:
        texts = read_docstring(ast.get_docstring(constructor) or "")[3] | texts
    slot, name = (ast.literal_eval(argument) for argument in decorator.args)
    return Declaration(
        slot=slot,
        name=name,
        target=f"{module}:{node.name}",
        reads=declared.get("reads", ()),
        uses=declared.get("uses", ()),
        source=" ".join(declared.get("source", ())),
        extra=" ".join(declared.get("extra", ())),
        abilities=_abilities(node) if slot == "environment" else (),
        summary=summary,
        body=body,
        notes=notes,
        options=tuple(_options(node, constructor, texts)),
    )


def _plain(node: ast.expr) -> tuple[str, ...]:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return (ast.unparse(node),)  # a constant of the module: its name says enough
    return (value,) if isinstance(value, str) else tuple(value)


def _constructor(node: Definition) -> ast.FunctionDef | None:
    inside = node.body if isinstance(node, ast.ClassDef) else []
    return next((n for n in inside if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)


def _abilities(node: Definition) -> tuple[str, ...]:
    """What the class lists in its attribute `abilities`."""
    for inner in node.body if isinstance(node, ast.ClassDef) else []:
        if not isinstance(inner, ast.Assign | ast.AnnAssign):
            continue
        target = inner.targets[0] if isinstance(inner, ast.Assign) else inner.target
        if isinstance(target, ast.Name) and target.id == "abilities" and inner.value is not None:
            return _plain(inner.value)
    return ()


def _options(node: Definition, constructor: ast.FunctionDef | None, texts: dict[str, str]) -> Iterator[Option]:
    if isinstance(node, ast.ClassDef) and constructor is None:
        fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
        triples = [(ast.unparse(n.target), n.annotation, n.value) for n in fields]  # a keyword-only dataclass
    else:
        arguments = (constructor or node).args  # type: ignore[union-attr]
        triples = [(a.arg, a.annotation, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    for name, kind, default in triples:
        yield Option(
            name=name,
            kind=ast.unparse(kind) if kind else "",
            default=ast.unparse(default) if default else None,
            text=texts.get(name, ""),
        )


def read_docstring(docstring: str) -> tuple[str, str, dict[str, str], dict[str, str]]:
    """Summary, prose, notes by heading ("Returns", "Raises" …) and argument texts of a docstring."""
    summary, _, rest = inspect.cleandoc(docstring).partition("\n")
    body: list[str] = []
    sections: dict[str, list[str]] = {}
    current = body
    for line in rest.splitlines():
        if line.startswith(">>>"):
            break
        heading = SECTIONS.match(line)
        if heading:
            current = sections.setdefault(heading[1], [])
        elif line.strip() and not line.startswith(" ") and current is sections.get("Args"):
            current = body  # a paragraph after the arguments
        current.append(heading[2] if heading else line)
    arguments = _arguments(sections.pop("Args", []))
    notes = {heading: " ".join(" ".join(lines).split()) for heading, lines in sections.items()}
    return summary, "\n".join(body).strip("\n"), notes, arguments


def _arguments(lines: list[str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    name = ""
    for line in lines:
        start = re.match(r"^ {4}([a-z_][a-z0-9_, ]*):\s*(.*)$", line)
        if start:
            name = start[1]
            texts[name] = start[2].strip()
        elif name and line.strip():
            texts[name] += " " + line.strip()
    return {single.strip(): text for several, text in texts.items() for single in several.split(",")}
