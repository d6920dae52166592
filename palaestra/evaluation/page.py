"""The look of the report: one HTML page that holds everything it shows.

Knows HTML and style. Knows nothing of runs.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

STYLE = """
:root { color-scheme: light dark; --back: #fbfaf7; --card: #ffffff; --text: #1d1f24; --soft: #656a73;
  --rule: #e4e1d9; --accent: #0072b2; --bad: #b3261e;
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #cc79a7; --s4: #b8860b; --s5: #3a9bd4; --s6: #7f7f7f; --s7: #333; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14161a; --card: #1c1f25; --text: #e6e4de; --soft: #9aa0aa; --rule: #30343c; --accent: #5ab4f0;
    --bad: #ff8a80; --s0: #5ab4f0; --s1: #ff9e5e; --s2: #3fcfa4; --s3: #e6a3c8; --s4: #f0c25a; --s5: #8fd0ff;
    --s6: #a8a8a8; --s7: #ddd; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 15px/1.55 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 40px 24px 80px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 18px; margin: 44px 0 14px; }
.soft, small { color: var(--soft); }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin: 24px 0 0; }
.tile, figure, .wide, details { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.tile { padding: 14px 18px; min-width: 150px; }
.tile b { display: block; font-size: 24px; font-weight: 650; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(320px, 1fr)); gap: 14px; }
figure { margin: 0; padding: 12px 14px 6px; }
figcaption { font-weight: 600; font-size: 14px; }
figcaption small { font-weight: 400; display: inline-flex; flex-wrap: wrap; gap: 0 12px; margin-left: 8px; }
.key::before { content: ""; display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 5px; }
svg { width: 100%; height: auto; display: block; }
.grid { stroke: var(--rule); } .axis { stroke: var(--soft); } .tick { fill: var(--soft); font-size: 11px; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .band { opacity: 0.16; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 7px 14px; border-bottom: 1px solid var(--rule); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code, pre { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
td code { overflow-wrap: anywhere; }
details { margin: 8px 0; }
summary { cursor: pointer; padding: 10px 16px; }
.turn { border-top: 1px solid var(--rule); padding: 10px 16px; }
.turn pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 4px 0; }
.act { border-left: 3px solid var(--accent); padding-left: 10px; }
.bad { color: var(--bad); } .turn .bad { font-size: 13px; }
.share { background: var(--s0); height: 9px; border-radius: 3px; min-width: 2px; margin-top: 7px; }
""" + "\n".join(
    f".line.s{k} {{ stroke: var(--s{k}) }} .dot.s{k}, .band.s{k} {{ fill: var(--s{k}) }} "
    f".key.s{k}::before {{ background: var(--s{k}) }}"
    for k in range(8)
)


def page(title: str, sections: Iterable[str]) -> str:
    """A whole document; `sections` are HTML, `title` is text. It loads nothing from anywhere."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def section(title: str, *content: str) -> str:
    """A heading (text) and what stands under it (HTML); nothing if that is empty."""
    inside = "".join(content)
    return f"<section><h2>{html.escape(title)}</h2>{inside}</section>" if inside else ""


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """A table of texts; columns in `numbers` are set flush right."""

    def line(cells: Sequence[str], tag: str) -> str:
        kind = [' class="number"' if k in numbers else "" for k in range(len(cells))]
        return "".join(f"<{tag}{c}>{html.escape(cell)}</{tag}>" for c, cell in zip(kind, cells, strict=True))

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{line(header, "th")}</tr>{body}</table></div>'


def tile(value: str, label: str) -> str:
    """A big number with its meaning."""
    return f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(label)}</span></div>'
