"""A hook of MkDocs: LaTeX between `$$` becomes MathML, which browsers draw without any script.

Knows one kind of formula: a block of its own, as GitHub draws it too.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert

BLOCK = re.compile(r"^\$\$\n(.*?)\n\$\$$", re.MULTILINE | re.DOTALL)


def rendered(markdown: str) -> str:
    """The page with its formulas as MathML."""
    return BLOCK.sub(
        lambda found: "\n<div class='formula'>" + convert(found[1], display="block") + "</div>\n", markdown
    )


def on_page_markdown(markdown: str, **context: Any) -> str:
    """Called by MkDocs for every page."""
    return rendered(markdown)
