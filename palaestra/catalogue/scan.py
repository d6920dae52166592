"""Reads parts from the source text of the package.

It imports none of them, so it also lists parts whose optional packages are not installed.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from palaestra.registry import SLOTS
from palaestra.registry.docstrings import read_docstring
from palaestra.registry.source_search import PACKAGE, module_of, registrations

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of a part: the keyword-only parameter `parameter`, or a field of the group that it takes."""

    name: str
    default: str | None
    text: str
    parameter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One part, as its source text declares it. `target` is `module:attribute`; only environments have `abilities`."""

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
    """All parts of the package with their options, in the order of slots and then of names.

    Args:
        only: a `module:attribute`; then only the parts of this module are read.
    """
    files = dict.fromkeys(path for path, _ in registrations(package))
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in files
        if module_of(path, package) == (only.partition(":")[0] or module_of(path, package))
    }
    source = SourceText(package)
    return _sorted(part for path, text in texts.items() for part in _parts_of(text, module_of(path, package), source))


def heads(*slots: str, package: Path = PACKAGE) -> list[Declaration]:
    """The parts of these slots, or all parts, without their options. This takes a tenth of the time of `declarations`.

    Only the decorator, the signature and the docstring of a part are read.
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
    """The source text of a registration up to the end of its docstring; the whole file, if it has no docstring."""
    text, opening = match.string, match.string.find('"""', match.end())
    closing = text.find('"""', opening + 3)
    between = text[match.end() : opening]
    if opening < 0 or closing < 0 or re.search(r"^(?:@|async def|def|class)\b", between, re.MULTILINE):
        return text
    return text[match.start() : closing + 3] + "\n"


def _parts_of(text: str, module: str, source: SourceText | None = None) -> Iterator[Declaration]:
    """The parts in a source text. Groups of options are looked up in `source`; without it, parts have no options."""
    for node in ast.parse(text).body:
        if isinstance(node, Definition):
            for decorator in node.decorator_list:
                if is_registration(decorator):
                    yield _declaration(node, decorator, module, source)


def is_registration(node: ast.AST) -> bool:
    """Whether this is a call `register("slot", "name", …)`."""
    return (
        isinstance(node, ast.Call)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) == "register"
        and len(node.args) == 2
        and all(isinstance(a, ast.Constant) and isinstance(a.value, str) for a in node.args)
    )


def _declaration(node: Definition, decorator: ast.expr, module: str, source: SourceText | None) -> Declaration:
    assert isinstance(decorator, ast.Call)
    wanted = ("reads", "uses", "source", "extra", "first")
    declared = {keyword.arg: _plain(keyword.value) for keyword in decorator.keywords if keyword.arg in wanted}
    told = read_docstring(ast.get_docstring(node) or "")
    texts = told.arguments
    constructor = _constructor(node)
    if constructor is not None:
        texts = read_docstring(ast.get_docstring(constructor) or "").arguments | texts
    slot, name = (ast.literal_eval(argument) for argument in decorator.args)
    options = (
        [] if source is None else _options(node, constructor, texts, functools.partial(source.group, module=module))
    )
    first = declared.get("first", ())
    options.sort(key=lambda option: first.index(option.name) if option.name in first else len(first))
    return Declaration(
        slot=slot,
        name=name,
        target=f"{module}:{node.name}",
        reads=declared.get("reads", ()),
        uses=declared.get("uses", ()),
        source=" ".join(declared.get("source", ())),
        extra=" ".join(declared.get("extra", ())),
        abilities=_abilities(node) if slot == "environment" else (),
        summary=told.summary,
        body=told.body,
        notes=told.notes,
        options=tuple(options),
    )


def _plain(node: ast.expr) -> tuple[str, ...]:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return (ast.unparse(node),)  # a constant of the module: its name is shown
    return (value,) if isinstance(value, str) else tuple(value)


def _constructor(node: Definition) -> ast.FunctionDef | None:
    inside = node.body if isinstance(node, ast.ClassDef) else []
    return next((n for n in inside if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)


def _abilities(node: Definition) -> tuple[str, ...]:
    """The names in the attribute `abilities` of the class."""
    for inner in node.body if isinstance(node, ast.ClassDef) else []:
        if not isinstance(inner, ast.Assign | ast.AnnAssign):
            continue
        target = inner.targets[0] if isinstance(inner, ast.Assign) else inner.target
        if isinstance(target, ast.Name) and target.id == "abilities" and inner.value is not None:
            return _plain(inner.value)
    return ()


def _options(
    node: Definition,
    constructor: ast.FunctionDef | None,
    texts: dict[str, str],
    group_of: Callable[[ast.expr | None], ast.ClassDef | None],
) -> list[Option]:
    """The options of a part. A group of options is replaced by its fields."""
    found: list[Option] = []
    if isinstance(node, ast.ClassDef) and constructor is None:
        fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
        pairs = [(ast.unparse(n.target), n.value) for n in fields]  # a keyword-only dataclass
    else:
        arguments = (constructor or node).args  # type: ignore[union-attr]
        pairs = [(a.arg, default) for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    for name, default in pairs:
        group = group_of(default)
        if group is None:
            found.append(_option(name, default, parameter=name, texts=texts))
        else:
            found += _fields(group, default, parameter=name, texts=texts)
    return found


def _option(name: str, default: ast.expr | None, *, parameter: str, texts: dict[str, str]) -> Option:
    return Option(
        name=name,
        default=ast.unparse(default) if default else None,
        text=texts.get(name, ""),
        parameter=parameter,
    )


def _fields(
    group: ast.ClassDef, default: ast.expr | None, *, parameter: str, texts: dict[str, str]
) -> Iterator[Option]:
    """The fields of a group that a part offers, with the defaults that `default` gives them."""
    given = {keyword.arg: keyword.value for keyword in getattr(default, "keywords", ())}
    fixed = ast.literal_eval(given["fixed"]) if "fixed" in given else ()
    texts = read_docstring(ast.get_docstring(group) or "").arguments | texts
    for node in group.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id not in fixed:
            name = node.target.id
            yield _option(name, given.get(name, node.value), parameter=parameter, texts=texts)


class SourceText:
    """The source text of a package. It finds the definition of a name through imports."""

    def __init__(self, package: Path) -> None:
        self._package = package
        self._trees: dict[str, ast.Module | None] = {}

    def group(self, default: ast.expr | None, module: str) -> ast.ClassDef | None:
        """The class of a default such as `Peers(by=("group",))`; None, if it is not a group of options."""
        if not isinstance(default, ast.Call) or not isinstance(default.func, ast.Name):
            return None
        found = self._definition(default.func.id, module)
        is_group = found is not None and any(ast.unparse(parent) == "OptionGroup" for parent in found.bases)
        return found if is_group else None

    def _definition(self, name: str, module: str) -> ast.ClassDef | None:
        """The class that a module defines or imports under this name; None, if there is none."""
        tree = self._tree(module)
        for node in tree.body if tree is not None else ():
            if isinstance(node, ast.ClassDef) and node.name == name:
                return node
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self._definition(alias.name, node.module)
        return None

    def _tree(self, module: str) -> ast.Module | None:
        if module not in self._trees:
            root, *pieces = module.split(".")
            place = self._package.joinpath(*pieces)
            files = [path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()]
            known = root == self._package.name and bool(files)
            self._trees[module] = ast.parse(files[0].read_text(encoding="utf-8")) if known else None
        return self._trees[module]
