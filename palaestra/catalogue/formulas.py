"""Formulas for a terminal: LaTeX as one line of text, with the letters and signs that Unicode has."""

from __future__ import annotations

import functools
import re
from typing import Any

from pylatexenc.latex2text import LatexNodes2Text, MacroTextSpec, get_default_latex_context_db
from pylatexenc.latexwalker import LatexWalker
from pylatexenc.latexwalker import get_default_latex_context_db as default_macros
from pylatexenc.macrospec import std_macro

FRACTIONS = ("frac", "tfrac", "dfrac")
UNCHANGED = ("operatorname", "mathrel")  # macros that show their argument
NAMES = ("log", "ln", "min", "max", "exp", "dim", "cos", "tanh")
SIGNS = {"qquad": "    ", "quad": "  ", "|": "‖", **{name: f"{name} " for name in NAMES}}
WITHOUT_PARENTHESES = re.compile(r"[\w']+(_\{[^{}]*\}|_\w)?")  # a numerator or denominator that is one name or number
SUM = re.compile(r"(?<=[^\s+·])([+=-]) ")  # whose first space a Greek letter before it has taken
RELATION = re.compile(r" *([≤≥∈←→≈∝∼≠·]) *")


def in_a_terminal(latex: str) -> str:
    """A formula as text: `\\frac{a + b}{c}` becomes `(a + b)/c`, and `x_{i+1}` stays as it is."""
    nodes = LatexWalker(latex, latex_context=_macros()).get_latex_nodes()[0]
    text = SUM.sub(r" \1 ", RELATION.sub(r" \1 ", _converter().nodelist_to_text(nodes)))
    text = re.sub(rf"\b({'|'.join(NAMES)}) +(?=[\s_(])", r"\1", text.replace("\n", " "))
    return re.sub(r"(?<=\S) {2}(?=\S)", " ", text).strip()


@functools.cache
def _macros() -> Any:
    """The macros that are read, with the number of their arguments."""
    known = default_macros()
    arguments = {**dict.fromkeys(FRACTIONS, "{{"), **dict.fromkeys(UNCHANGED, "{")}
    known.add_context_category("formulas", [std_macro(name, spec) for name, spec in arguments.items()], prepend=True)
    return known


@functools.cache
def _converter() -> LatexNodes2Text:
    known = get_default_latex_context_db()
    texts: dict[str, Any] = {**dict.fromkeys(FRACTIONS, _fraction), **dict.fromkeys(UNCHANGED, _argument), **SIGNS}
    known.add_context_category("formulas", [MacroTextSpec(name, text) for name, text in texts.items()], prepend=True)
    return LatexNodes2Text(known, math_mode="text", keep_braced_groups=True, keep_braced_groups_minlen=2)


def _arguments(node: Any, converter: LatexNodes2Text) -> list[str]:
    texts = (converter.nodelist_to_text([argument]).strip() for argument in node.nodeargd.argnlist)
    return [text[1:-1] if text.startswith("{") and text.endswith("}") else text for text in texts]


def _argument(node: Any, l2tobj: LatexNodes2Text) -> str:
    return _arguments(node, l2tobj)[0]


def _fraction(node: Any, l2tobj: LatexNodes2Text) -> str:
    both = _arguments(node, l2tobj)
    return "/".join(text if WITHOUT_PARENTHESES.fullmatch(text) else f"({text})" for text in both)
