"""Reads the signature of a user's function or class from the text of its file, so that `explain` runs no code of it.

Only what stands literally in the text is known. The rest is left open: any option is allowed, and nothing is declared.
"""

from __future__ import annotations

import ast
import importlib.machinery
import inspect
import sys
import typing
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from palaestra.registry import options

_reading: dict[str, Any] = {"only": False, "found": {}}  # of the process, as `explain` has no threads
STUBS: weakref.WeakSet[Any] = weakref.WeakSet()  # functions that stand for code that was not imported
TYPES: dict[str, Any] = {
    **{kind.__name__: kind for kind in (int, float, str, bool, list, dict, tuple, set)},
    **{name: getattr(typing, name) for name in ("Any", "Literal", "Optional", "Union")},
    "Mapping": Mapping,
    "Sequence": Sequence,
    **{
        name: getattr(options, name)
        for name in (
            "Columns",
            "Count",
            "Degrees",
            "Discount",
            "Fraction",
            "NonNegative",
            "Positive",
            "PositiveInt",
            "Scale",
        )
    },
}
Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
DECLARES = ("reads", "reads_if", "ignores_if", "writes", "uses", "scope", "frozen_minibatch", "every_token", "extra")


@contextmanager
def signatures_only(only: bool = True) -> Iterator[dict[str, str]]:
    """A context in which the registry reads a user's code and does not import it.

    Gives a mapping that is filled: the name in the recipe → what of it is not checked.
    """
    former = dict(_reading)
    found: dict[str, str] = {}
    _reading.update(only=only, found=found)
    try:
        yield found
    finally:
        _reading.update(former)


def reads_only() -> bool:
    """Whether code of the user must not be imported now."""
    return bool(_reading["only"])


def is_unread(target: Any) -> bool:
    """Whether a function stands for code of the user that was not imported."""
    return target in STUBS


def leave_unread(name: str, what: str) -> None:
    """Note that code of the user is not imported, for the mapping that `signatures_only` gives."""
    _reading["found"].setdefault(name, what)


def file_of_module(name: str) -> Path | None:
    """The file of a module, found without importing anything; None, if there is none or it is no Python text."""
    path: Any = None
    spec = None
    for end in range(1, len(pieces := name.split(".")) + 1):
        whole = ".".join(pieces[:end])
        spec = importlib.machinery.PathFinder.find_spec(whole, path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    origin = spec.origin if spec is not None else None
    return Path(origin) if origin and origin.endswith(".py") and name not in sys.builtin_module_names else None


def read_part(name: str, file: Path, attribute: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A function with the signature and the declarations that the text gives, and the arguments of its `register`.

    Calling it is an error. An option whose kind the text does not tell takes any value.

    Args:
        name: as the recipe writes it.

    Raises: OSError; SyntaxError; AttributeError, if the file is a plain one and defines no such name.
    """
    tree = ast.parse(file.read_bytes(), filename=str(file))
    defined = {node.name: node for node in tree.body if isinstance(node, Defined)}
    node = defined.get(attribute)
    if node is None and attribute not in _other_names(tree):
        raise AttributeError(f"{file.name} has no `{attribute}`")
    head, known = _head(node, defined), True
    if head is None:
        known = False
    declared, registered = _declared(node), _registered(node)
    found = _with_signature(attribute, head)
    if node is None or _hidden(node) or found is None or registered is None:
        known = False
    stub = found or _stub(attribute)
    for key, value in declared.items():
        setattr(stub, key, value)
    stub.__doc__ = None if node is None else ast.get_docstring(node)
    if not known:
        options.OPEN.add(stub)
    _reading["found"][name] = "its options were read from the text" if known else "its options are not known"
    return stub, registered or {}


def _stub(name: str) -> Callable[..., Any]:
    def unread(*data: Any, **given: Any) -> Any:
        raise RuntimeError(f"{name} was not imported")

    STUBS.add(unread)
    unread.__name__ = unread.__qualname__ = name
    unread.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
    return unread


def _with_signature(name: str, head: ast.arguments | None) -> Callable[..., Any] | None:
    """A stub with these parameters; None, if a group of options, which the text does not list, may be among them."""
    if head is None or head.kwarg is not None:
        return None
    stub, made = _stub(name), []
    for argument in (*head.posonlyargs, *head.args):
        made.append(inspect.Parameter(argument.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD))
    for argument, default in zip(head.kwonlyargs, head.kw_defaults, strict=True):
        if isinstance(default, ast.Call):
            return None
        value = inspect.Parameter.empty if default is None else _value(default)
        made.append(inspect.Parameter(argument.arg, inspect.Parameter.KEYWORD_ONLY, default=value))
        stub.__annotations__[argument.arg] = _type(argument.annotation)
    stub.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
    return stub


def _head(node: ast.stmt | None, defined: Mapping[str, Any]) -> ast.arguments | None:
    """The parameters without `self`; None, if the text does not tell them."""
    if isinstance(node, FUNCTION):
        return node.args
    if not isinstance(node, ast.ClassDef):
        return None
    own = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    if own is not None:
        positional = [*own.args.posonlyargs, *own.args.args][1:]
        return ast.arguments(
            [], positional, own.args.vararg, own.args.kwonlyargs, own.args.kw_defaults, own.args.kwarg, []
        )
    bases = [base.id if isinstance(base, ast.Name) else "" for base in node.bases]
    if not bases:
        return ast.arguments([], [], None, [], [], None, [])
    return (
        _head(defined.get(bases[0]), {k: v for k, v in defined.items() if v is not node}) if len(bases) == 1 else None
    )


def _hidden(node: Defined) -> bool:
    """Whether something else than `register` changes the function or class."""
    has_metaclass = isinstance(node, ast.ClassDef) and bool(node.keywords)
    return has_metaclass or any(_called(one) != "register" for one in node.decorator_list)


def _called(node: ast.expr) -> str:
    function = node.func if isinstance(node, ast.Call) else node
    return (
        function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    )


def _registered(node: Defined | None) -> dict[str, Any] | None:
    """The arguments of `register` that can be read, `slot` among them; {} without it; None, if some cannot be."""
    for one in node.decorator_list if node is not None else ():
        if isinstance(one, ast.Call) and _called(one) == "register":
            try:
                slot = ast.literal_eval(one.args[0])
                given = {k.arg: ast.literal_eval(k.value) for k in one.keywords if k.arg in DECLARES}
            except (ValueError, IndexError, TypeError, RecursionError):
                return None
            return {str(key): value for key, value in given.items()} | {"slot": slot}
    return {}


def _declared(node: ast.stmt | None) -> dict[str, Any]:
    """The attributes of a class whose values stand literally in its body."""
    found: dict[str, Any] = {}
    for line in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(line, ast.Assign) and len(line.targets) == 1:
            target, value = line.targets[0], line.value
        elif isinstance(line, ast.AnnAssign) and line.value is not None:
            target, value = line.target, line.value
        else:
            continue
        if isinstance(target, ast.Name) and target.id == "provides":
            wraps = isinstance(value, ast.Call) and _called(value) == "frozenset" and value.args
            literal = _value(value.args[0] if isinstance(value, ast.Call) and wraps else value)
            found["provides"] = frozenset(literal) if isinstance(literal, set | list | tuple) else None
    return found


def _value(node: ast.expr) -> Any:
    """The value of a default, or its text if it is not literal."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return ast.unparse(node)


def _type(node: ast.expr | None) -> Any:
    """The type that an annotation names, if it is made of well-known ones; else `Any`. Nothing is evaluated."""
    try:
        return _known_type(node)
    except (LookupError, TypeError, ValueError, SyntaxError):
        return Any


def _known_type(node: ast.expr | None) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.parse(node.value, mode="eval").body
    if isinstance(node, ast.Constant) and node.value is None:
        return None
    if isinstance(node, ast.Name):
        return TYPES[node.id]
    if isinstance(node, ast.Attribute):
        return TYPES[node.attr]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return typing.Union[_known_type(node.left), _known_type(node.right)]  # noqa: UP007
    if isinstance(node, ast.Subscript):
        outer = _known_type(node.value)
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        literal = outer is typing.Literal
        given = tuple(ast.literal_eval(one) if literal else _argument(one) for one in inner)
        return outer[given if len(given) > 1 else given[0]]
    raise LookupError


def _argument(node: ast.expr) -> Any:
    return ... if isinstance(node, ast.Constant) and node.value is ... else _known_type(node)


def _other_names(tree: ast.Module) -> set[str]:
    """Names that a module has by an import or an assignment; with `import *` or code at the top, any may be one."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
    return names
