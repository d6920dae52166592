"""Limits of chat templates, which come with a model's folder and may loop without end or write texts without end.

transformers compiles a template with `ImmutableSandboxedEnvironment`, which keeps it from Python's internals and bounds
nothing else. `bound_templates` puts `LimitedEnvironment` in its place. Each round of a loop and each call looks at the
time, and each operation that makes a longer value from two others looks at its size.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import GeneratorType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer
from markupsafe import Markup
from transformers.utils import chat_template_utils

from palaestra.errors import EpisodeFailure

SECONDS = 5.0  # processor time of one dialogue; templates of real models take milliseconds
SOURCE = 2**17  # characters of a template; those of real models have at most 20,000
LONGEST = 2**23  # characters of a value, with all that is in it
ENTRY = 8  # an entry of a list counts as this many characters
WIDEST = 2**10  # a width, an indentation, a number of columns
BITS = 2**12  # of a number
TERMS = 8  # values that one operation may put together before it looks at the size
WITH_WIDTH = {"batch", "center", "expandtabs", "indent", "ljust", "rjust", "round", "slice", "tojson",
              "zfill"}  # fmt: skip
# What makes a value from several, from one and a number, or from a text and a number in it.
LENGTHENING = WITH_WIDTH | {"replace", "join", "format", "format_map", "sum"}
# Filters that take no longer than it takes to read their argument once, and never make it longer.
QUICK = {"abs", "count", "d", "default", "first", "float", "items", "last", "length", "lower", "safe", "trim",
         "upper"}  # fmt: skip
# What takes without end in one call, or makes bytes, whose methods have no limits. No template of a model uses them.
ENDLESS_FILTERS = {"urlize", "wordwrap"}
ENDLESS_METHODS = {"encode", "translate", "maketrans", "to_bytes", "from_bytes", "from_hex", "fromhex"}
VIEWS: tuple[type, ...] = (type({}.items()), type({}.values()), type({}.keys()))
CONTEXTS = (jinja2.Environment, nodes.EvalContext, Context)  # what jinja2 gives to some filters before the arguments
SMALL = frozenset({bool, int, float, type(None), GeneratorType, *VIEWS})  # a view of a value that fits is no longer
# A width of a text for `format` or `%` that is large, or that is a value.
_WIDE = re.compile(r"%(\([^)]*\))?[-#0 +]*\d*\.?(\d{4,}|\*)|\{[^{}]*:[^{}]*(\d{4,}|\{)")
REPLACE = ("s", "old", "new")  # arguments of the filter
JUST_TIME, FITS = "within time", "fits"  # filters that no template can name


class _Rendering(threading.local):
    """The rendering of this thread: when its time is over, and how many rounds its loops have made."""

    end = float("inf")
    rounds = 0


_rendering = _Rendering()


def bound_templates() -> None:
    """Let transformers compile all templates of this process with limits."""
    if chat_template_utils.ImmutableSandboxedEnvironment is not LimitedEnvironment:
        chat_template_utils.ImmutableSandboxedEnvironment = LimitedEnvironment  # type: ignore[misc]
        chat_template_utils._compile_jinja_template.cache_clear()


class LimitedTemplate(jinja2.Template):
    """A template whose rendering ends with an EpisodeFailure if it goes on for too long."""

    @classmethod
    def _from_namespace(cls, environment: Any, namespace: Any, globals: Any) -> jinja2.Template:
        namespace["concat"] = joined  # of macros and of `set` blocks
        return super()._from_namespace(environment, namespace, globals)

    def render(self, *args: Any, **variables: Any) -> str:
        _rendering.end = time.thread_time() + SECONDS
        try:
            return super().render(*args, **variables)
        except (RecursionError, MemoryError) as error:
            raise _failure("it calls itself without end, or makes a value without end") from error
        finally:
            _rendering.end = float("inf")


class Filters(dict[str, Any]):
    """Filters of templates, with limits."""

    def __setitem__(self, name: str, function: Callable[..., Any]) -> None:
        limited = _endless if name in ENDLESS_FILTERS else _limited
        super().__setitem__(name, function if name in QUICK else limited(name, function))


def joined(texts: Iterable[str]) -> str:
    """The texts that a template wrote, as one."""
    texts = list(texts)
    _refuse_long(sum(map(len, texts)))
    return "".join(texts)


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """The environment of jinja2 with limits of time and size."""

    template_class = LimitedTemplate
    intercepted_binops = frozenset({"*", "**", "%"})
    concat = staticmethod(joined)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        plain, self.filters = self.filters, Filters()
        for name, function in plain.items():
            self.filters[name] = function
        dict.update(self.filters, {JUST_TIME: _round, FITS: _fitting})
        self.globals.pop("lipsum", None)  # makes texts of any length

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The syntax tree, in which loops look at the time, and operations at the size of what they make."""
        if len(source) > SOURCE:
            raise _failure(f"it has {len(source)} characters, and at most {SOURCE} are read")
        tree = _Limits().visit(super()._parse(source, name, filename))
        return tree.set_environment(self)  # type: ignore[no-any-return]

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr in ENDLESS_METHODS:
            raise _failure(f"it uses the method `{attr}`, whose time and memory have no limit")
        return super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Any, __obj: Any, *args: Any, **named: Any) -> Any:
        _count()
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps `format` of texts
        if getattr(method, "__name__", "") in LENGTHENING:
            owner = getattr(method, "__self__", None)
            args = tuple(_listed(one) for one in args)
            given = (owner, *args) if isinstance(owner, str) else args
            _look_at_arguments(method.__name__, given[1::-1] if method.__name__ == "join" else given, named)
        return _fitting(super().call(__context, __obj, *args, **named))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and type(left) is int:
            return super().call_binop(context, operator, left, right)
        _look_at_time()
        if isinstance(left, int) and isinstance(right, int) and operator in ("*", "**"):
            bits = left.bit_length() + right.bit_length() if operator == "*" else left.bit_length() * max(right, 0)
            if bits > BITS:
                _refuse_bits(bits)
        elif operator == "*":
            number = next((one for one in (left, right) if isinstance(one, int)), 0)
            _refuse_long(max(_size(left), _size(right)) * number)
        elif operator == "%" and isinstance(left, str):
            _look_at_arguments("format", (left, right), {})
        return _fitting(super().call_binop(context, operator, left, right))


class _Limits(NodeTransformer):
    """Puts the limits of time into loops, and those of size around operations that make longer values.

    Sums of up to `TERMS` values that are only written need none, since `joined` looks at all that is written.
    """

    def visit_For(self, loop: nodes.For) -> nodes.Node:
        self.generic_visit(loop)
        loop.body.insert(0, nodes.ExprStmt(_filtered(nodes.Const(None), JUST_TIME)))
        if loop.test is not None:
            loop.test = nodes.And(_filtered(nodes.Const(None), JUST_TIME), loop.test)
        return loop

    def visit_Output(self, output: nodes.Output) -> nodes.Node:
        output.nodes = [self._sum(one)[0] for one in output.nodes]
        return output

    def generic_visit(self, node: nodes.Node, *args: Any, **named: Any) -> nodes.Node:
        if not _joins(node):
            return super().generic_visit(node, *args, **named)  # type: ignore[no-any-return]
        value, terms = self._sum(node)
        return _filtered(value, FITS) if terms > 1 else value

    def _sum(self, node: Any) -> tuple[Any, int]:
        """A node with its limits, and how many values it puts together that are no constants."""
        if not _joins(node):
            return self.visit(node), 0 if isinstance(node, nodes.Const | nodes.TemplateData) else 1
        terms = 0
        for field, value in node.iter_fields():
            parts = value if isinstance(value, list) else [value]
            limited = [self._sum(one) if isinstance(one, nodes.Node) else (one, 0) for one in parts]
            terms += sum(number for _, number in limited)
            setattr(node, field, [one for one, _ in limited] if isinstance(value, list) else limited[0][0])
        return (_filtered(node, FITS), 1) if terms > TERMS and not isinstance(node, nodes.Pair) else (node, terms)


def _joins(node: nodes.Node) -> bool:
    """Whether the value of a node has all of its parts in it."""
    if isinstance(node, nodes.Tuple):
        return node.ctx == "load"  # otherwise it names what is assigned
    return isinstance(node, nodes.Add | nodes.Concat | nodes.List | nodes.Dict | nodes.Pair)


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)


@jinja2.pass_context  # so that jinja2 calls it in each round
def _round(context: Any, value: Any) -> bool:
    """True. Raises: EpisodeFailure, if the template's time is over."""
    _count()
    return True


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with limits. What tells jinja2 how to call it stays."""

    @functools.wraps(function)
    def limited(*args: Any, **named: Any) -> Any:
        _look_at_time()
        if name in LENGTHENING:
            args = tuple(_listed(one) for one in args)
            _look_at_arguments(name, tuple(one for one in args if not isinstance(one, CONTEXTS)), named)
        return _fitting(function(*args, **named))

    return limited


def _endless(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def refused(*args: Any, **named: Any) -> Any:
        raise _failure(f"it uses the filter `{name}`, whose time has no limit")

    return refused


def _listed(value: Any) -> Any:
    """The entries of an iterator as a list, so that their size can be looked at; any other value as it is."""
    if not isinstance(value, Iterator):
        return value
    entries = []
    for one in value:
        _count()
        entries.append(one)
        _refuse_long(len(entries) * ENTRY)
    return entries


def _look_at_arguments(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Refuse arguments with which one call would make a value without end."""
    plain = [one for one in (*args, *named.values()) if isinstance(one, str | int | list | tuple)]
    texts = [one for one in plain if isinstance(one, str)]
    if name == "replace":
        text, old, new = (str(named.get(key, args[n] if n < len(args) else "")) for n, key in enumerate(REPLACE))
        _refuse_long(len(text) + text.count(old) * len(new))
    elif name == "join" and args and isinstance(args[0], str | list | tuple):
        between = named.get("d", args[1] if len(args) > 1 else "")
        _refuse_long(len(args[0]) * len(str(between)) + _size(args[0]))
    elif name in ("format", "format_map") and texts:
        if _WIDE.search(texts[0]):
            raise _failure(f"it formats with a width of more than {WIDEST}, or one that is a value")
        fields = texts[0].count("{") + texts[0].count("%")
        _refuse_long(fields * (WIDEST + _size([*args[1:], named])))
    elif name == "sum" and not all(isinstance(one, str | int) for one in (*args[1:], *named.values())):
        _refuse_long(_size(args[0]) ** 2)  # each sum of lists is a copy
    elif name in WITH_WIDTH:
        width = max((one for one in plain if isinstance(one, int)), default=0)
        if width > WIDEST:
            raise _failure(f"`{name}` gets the number {str(width)[:20]}, and at most {WIDEST} is possible")
        if name == "tojson":
            _refuse_long(_indentation(args[0], width))
        lines = max((one.count("\n") + one.count("\t") + 1 for one in texts), default=0)
        _refuse_long(lines * width)


def _fitting(value: Any) -> Any:
    """The value, if it is not too long."""
    kind = type(value)
    if kind is str:
        if len(value) > LONGEST:
            _refuse_long(len(value))
    elif kind is int:
        if value.bit_length() > BITS:
            _refuse_bits(value.bit_length())
    elif kind not in SMALL:
        _refuse_long(_size(value))
    return value


def _size(value: Any) -> int:
    """The characters in a value and those that its entries count as, no further than `LONGEST`."""
    total, inside = 0, [value]
    while inside and total <= LONGEST:
        one = inside.pop()
        kind = type(one)
        total += ENTRY
        if kind is str or kind in (Markup, bytes, range):
            total += len(one)
        elif kind is dict:
            inside += one.keys()
            inside += one.values()
        elif kind in (list, tuple, *VIEWS):
            inside += one
        elif isinstance(one, Namespace):
            inside.append(object.__getattribute__(one, "_Namespace__attrs"))
    return total


def _indentation(value: Any, width: int) -> int:
    """The spaces with which JSON of a value is indented, counted no further than `LONGEST`."""
    layer, depth, total = [value], 0, 0
    while layer and total <= LONGEST:
        total += len(layer) * depth * width
        inner = [
            one.values() if isinstance(one, dict) else one for one in layer if isinstance(one, dict | list | tuple)
        ]
        layer, depth = [one for several in inner for one in several], depth + 1
    return total


def _refuse_bits(bits: int) -> NoReturn:
    raise _failure(f"it computes a number of {bits} bits, and at most {BITS} are possible")


def _refuse_long(size: int) -> None:
    if size > LONGEST:
        raise _failure(f"it makes a value of more than {LONGEST} characters")


def _count() -> None:
    """Count a round or a call. Asking for the time in each would take longer than many of them."""
    _rendering.rounds += 1
    if not _rendering.rounds & 15:
        _look_at_time()


def _look_at_time() -> None:
    if time.thread_time() > _rendering.end:
        raise _failure(f"it takes more than {SECONDS:g} seconds for one dialogue")


def _failure(what: str) -> EpisodeFailure:
    return EpisodeFailure(
        boundary="engine",
        where="chat template",
        what=f"{what}.",
        remedy="Set `tokenizer.chat_template` to a template that ends, and save the folder anew.",
    )
