"""Reads recipe files and overrides into trees that keep the file and line of every key."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from palaestra.errors import WIDEST_TEXT, RecipeError, shortened

COMMAND_LINE = "command line"
FOLDERS = ("run", "warm_start.keep")  # keys whose value is a folder
HERE = "."  # the working folder
LARGEST_FILE = 200_000  # characters of a recipe file
MOST_VALUES = 50_000  # in a file, each alias written out
DEEPEST = 50  # lists and mappings inside each other
LARGEST = 2**63 - 1  # of whole numbers
LAST, WRITTEN_DOWN = sys.maxsize, -1  # numbers of layers: of overrides, and of a recipe read from a run folder


@dataclass(frozen=True, slots=True)
class Mark:
    """The place where a value was written, and the text there.

    Attributes:
        source: `default`, a file, or `command line`.
        folders: if the value names a part in a user's file, the folders in which that file is looked for, in this
            order. In a recipe: the recipe's folder, then the working folder. In an override: the working folder first.
        layer: number of the source among those that are laid over each other, counted from 0.
    """

    source: str
    text: str = ""
    line: int | None = None
    folders: tuple[str, ...] = (HERE,)
    layer: int = 0

    @property
    def origin(self) -> str:
        """`recipes/gigpo.yaml:11`"""
        return self.source if self.line is None else f"{self.source}:{self.line}"

    @property
    def where(self) -> str:
        """`recipes/gigpo.yaml:11  advantage: gigpo`"""
        return f"{self.origin}  {self.text}".rstrip()


@dataclass(frozen=True, slots=True)
class Node:
    """A scalar, a list of nodes or a mapping to nodes, and where it was written."""

    value: Any
    mark: Mark

    def plain(self) -> Any:
        """The value without places. Mappings are sorted, so that the order of keys in a file changes no run."""
        if isinstance(self.value, dict):
            return {key: self.value[key].plain() for key in sorted(self.value)}
        return [item.plain() for item in self.value] if isinstance(self.value, list) else self.value

    def get(self, *path: str | int) -> Node | None:
        """The node at `path`, if it was written."""
        node: Node | None = self
        for key in path:
            if isinstance(node, Node) and isinstance(node.value, dict):
                node = node.value.get(key)
            elif isinstance(node, Node) and isinstance(node.value, list) and isinstance(key, int):
                node = node.value[key]
            else:
                return None
        return node


def folders_in(node: Node) -> Iterator[str]:
    """The folders of the recipes that a tree was read from. A folder may come several times."""
    yield from (folder for folder in node.mark.folders if folder != HERE)
    inner = node.value
    for child in inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ():
        yield from folders_in(child)


def as_layer(node: Node, layer: int) -> Node:
    """The same tree, with this layer number on every node."""
    inner = node.value
    if isinstance(inner, dict):
        inner = {key: as_layer(child, layer) for key, child in inner.items()}
    elif isinstance(inner, list):
        inner = [as_layer(child, layer) for child in inner]
    return Node(inner, replace(node.mark, layer=layer))


def node_of(value: Any, mark: Mark, *, texts: bool = False, depth: int = 0) -> Node:
    """A node of plain Python values that all come from one place.

    Args:
        texts: give the mark of each key its own text, `key: value`.
        depth: of the lists and mappings around the value.

    Raises: RecipeError, if they are too deep.
    """
    if depth > DEEPEST:
        raise _too_deep(mark)
    if isinstance(value, Mapping):
        places = {
            key: Mark(mark.source, shortened(f"{key}: {inner}")) if texts else mark for key, inner in value.items()
        }
        inside = {str(key): node_of(value[key], place, texts=texts, depth=depth + 1) for key, place in places.items()}
        return Node(inside, mark)
    if isinstance(value, list | tuple):
        return Node([node_of(inner, mark, depth=depth + 1) for inner in value], mark)
    if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        raise _too_large(mark)
    return Node(value, mark)


# ---- YAML -------------------------------------------------------------------------------------------------
class _Loader(yaml.SafeLoader):
    """Reads plain scalars as in YAML 1.2: `1e-3` is a number; `on`, `no` and dates are text."""

    yaml_implicit_resolvers = {}


PLAIN_TAGS = ("tag:yaml.org,2002:seq", "tag:yaml.org,2002:map")
_WHOLE = r"(?:0|[1-9][0-9_]*)"
for _tag, _pattern, _first in (
    ("null", r"(?:~|null|)", ["~", "n", ""]),
    ("bool", r"(?:true|false|True|False)", list("tfTF")),
    ("int", rf"[-+]?{_WHOLE}", list("-+0123456789")),
    ("float", rf"[-+]?(?:{_WHOLE}(?:\.[0-9_]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"(?:[-+]?\.inf|\.nan)", list("-+.")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^{_pattern}$"), _first)


def read_yaml(text: str, *, source: str, folder: str = HERE) -> Node:
    """The tree of a file's text, each key with its line.

    Args:
        source: the file's name in messages. folder: the folder that holds it.

    Raises: RecipeError, if the text is not YAML, gives a key twice, is not a mapping at the top, or is too large.
    """
    if len(text) > LARGEST_FILE:
        raise RecipeError(
            where=source,
            what=f"the file has {len(text):,} characters, and a recipe may have {LARGEST_FILE:,}.",
            remedy="Put data into files of their own, which a recipe names.",
        )
    lines, folders = text.splitlines(), tuple(dict.fromkeys((folder, HERE)))

    @functools.cache  # a long line has many values
    def mark_of(number: int) -> Mark:
        written = lines[number][: 2 * WIDEST_TEXT] if number < len(lines) else ""
        return Mark(source, shortened(re.sub(r"(^|\s+)#.*$", "", written).strip()), number + 1, folders)

    top = Mark(source, folders=folders)
    tree = _parse(text, lambda node: mark_of(node.start_mark.line), top=top)
    if tree.value is None:
        return Node({}, top)
    if not isinstance(tree.value, dict):
        raise RecipeError(where=source, what="a recipe is a mapping of keys to values.", remedy="Write `key: value`.")
    return tree


def read_override(text: str, *, folders: Sequence[str] = ()) -> tuple[str, Node]:
    """The key and the value of an override such as `rollout.group=16`. The value is YAML.

    The value of a key in `FOLDERS` is the text itself, so `run=runs/a #1` needs no quotes. A text in quotes is YAML,
    and so are `null`, `~` and nothing.

    Args:
        folders: of the recipes. A file that the value names may lie in one of them.

    Raises: RecipeError, if there is no `=`, a piece of the key is empty, or the value is not YAML.
    """
    mark = Mark(COMMAND_LINE, text, folders=(HERE, *folders), layer=LAST)
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")) or key != key.strip():
        raise RecipeError(
            where=mark.where,
            what="an override has the form `key=value`, where the key may have dots but no spaces.",
            remedy="For instance: rollout.group=16, or advantage.gigpo.gamma=0.9",
        )
    if key in FOLDERS and not _needs_quotes(value):
        return key, Node(_utf8(value, mark), mark)
    return key, _parse(value, lambda _: mark, top=mark)


def folder_override(key: str, folder: str) -> str:
    """The override that gives this folder to a key of `FOLDERS`, with quotes where it needs them.

    >>> folder_override("run", "runs/a #1"), folder_override("run", "~")
    ('run=runs/a #1', 'run="~"')
    """
    return f"{key}={json.dumps(folder, ensure_ascii=False) if _needs_quotes(folder) else folder}"


def _needs_quotes(text: str) -> bool:
    return text.strip().lower() in ("", "~", "null") or text.lstrip()[0] in "'\""


def _utf8(text: str, mark: Mark) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RecipeError(
            where=ascii(mark.where)[1:-1],
            what="the path has bytes that are not UTF-8.",
            remedy="Give the folder another name. Recipes and logs are UTF-8.",
        ) from None
    return text


def _parse(text: str, mark: Callable[[yaml.Node], Mark], *, top: Mark) -> Node:
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return Node(None, top) if node is None else _Conversion(loader, mark).node(node, top)
    except (yaml.YAMLError, RecursionError) as error:  # RecursionError: far too many brackets
        spot = getattr(error, "problem_mark", None)
        line = spot.line + 1 if spot is not None and top.source != COMMAND_LINE else None
        fault = getattr(error, "problem", None) or str(error)
        raise RecipeError(
            where=Mark(top.source, top.text, line).where,
            what=f"this is not YAML: {fault}.",
            remedy="Look for a missing quote, bracket or space after a colon, or a tab in the indentation.",
        ) from None


class _Conversion:
    """Makes a tree of YAML nodes. It counts the values, since a few lines with aliases can mean billions."""

    def __init__(self, loader: _Loader, mark: Callable[[yaml.Node], Mark]) -> None:
        self._loader, self._mark, self._values = loader, mark, 0
        self._around: set[int] = set()  # ids of the lists and mappings that are being made

    def node(self, node: yaml.Node, own: Mark, depth: int = 0) -> Node:
        """The tree of a node that was written at `own`. Raises: RecipeError."""
        self._values += 1
        if self._values > MOST_VALUES:
            raise RecipeError(
                where=own.where,
                what=f"the file means more than {MOST_VALUES:,} values, with each alias written out.",
                remedy="Use fewer aliases (`*name`), or put data into files of their own, which a recipe names.",
            )
        if depth > DEEPEST:
            raise _too_deep(own)
        if not isinstance(node, yaml.ScalarNode) and node.tag not in PLAIN_TAGS:
            raise RecipeError(
                where=own.where,
                what=f"the tag `{shortened(node.tag)}` has no meaning in a recipe.",
                remedy="Leave it out. Lists and mappings need no tag.",
            )
        if isinstance(node, yaml.ScalarNode):
            return Node(_scalar(node, self._loader, own), own)
        if id(node) in self._around:
            raise _contains_itself(own)
        self._around.add(id(node))
        made = self._mapping(node, own, depth) if isinstance(node, yaml.MappingNode) else self._list(node, own, depth)
        self._around.remove(id(node))
        return made

    def _list(self, node: yaml.Node, own: Mark, depth: int) -> Node:
        return Node([self.node(item, self._mark(item), depth + 1) for item in node.value], own)

    def _mapping(self, node: yaml.MappingNode, own: Mark, depth: int) -> Node:
        found: dict[str, Node] = {}
        for key, value in node.value:
            place = self._mark(key)
            if not isinstance(key, yaml.ScalarNode):
                raise RecipeError(
                    where=place.where,
                    what="a list or a mapping cannot be a key.",
                    remedy="Write `key: value`, with a text as key.",
                )
            name = str(key.value)
            if not _is_text(name):
                raise _no_text(place)
            if name in found:
                raise RecipeError(
                    where=place.where,
                    what=f"the key `{shortened(name)}` is given twice.",
                    remedy=f"See {found[name].mark.where}",
                )
            found[name] = self.node(value, place, depth + 1)
        return Node(found, own)


def _scalar(node: yaml.Node, loader: _Loader, own: Mark) -> Any:
    """The value of a scalar. Raises: RecipeError, if its tag, such as `!!int`, does not fit."""
    try:
        value = loader.construct_object(node)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        if "digits" in str(error):  # Python refuses whole numbers with more than 4,300
            raise _too_large(own) from None
        raise RecipeError(
            where=own.where,
            what=f"`{shortened(str(node.value))}` is no {node.tag.rpartition(':')[2]}.",
            remedy="Correct the value, or leave out its tag, such as `!!int`.",
        ) from None
    if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        raise _too_large(own)
    if value is not None and not isinstance(value, bool | int | float | str):
        raise RecipeError(
            where=own.where,
            what=f"a value of a recipe is a text, a number, a flag or null, not a {type(value).__name__}.",
            remedy=f"Leave out the tag `!!{node.tag.rpartition(':')[2]}`.",
        )
    if isinstance(value, str) and not _is_text(value):
        raise _no_text(own)
    return value


def _is_text(value: str) -> bool:
    return "\0" not in value and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _no_text(mark: Mark) -> RecipeError:
    what = "the text has characters that are none: a NUL, or half of a pair of surrogates."
    return RecipeError(where=mark.where, what=what, remedy="Leave them out.")


def _too_large(mark: Mark) -> RecipeError:
    return RecipeError(
        where=shortened(mark.where), what=f"a whole number is outside of ±{LARGEST}.", remedy="Write a smaller one."
    )


def _contains_itself(mark: Mark) -> RecipeError:
    return RecipeError(
        where=shortened(mark.where),
        what="an alias (`*name`) stands inside the value that it names.",
        remedy="Write the value out.",
    )


def _too_deep(mark: Mark) -> RecipeError:
    return RecipeError(
        where=shortened(mark.where),
        what=f"more than {DEEPEST} lists and mappings lie inside each other.",
        remedy="Write less deeply nested values.",
    )
