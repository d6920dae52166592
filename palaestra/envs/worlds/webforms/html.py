"""Write a site as one HTML file, which shows the same screens and controls in a real browser.

The file's script (`page.js`) changes the page as `play` changes a state. Its function `palaestraState()` returns the
screen and all values.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

from palaestra.envs.worlds.webforms.play import LEFT, LINE, PER_PAGE, SIZES, TOP, State
from palaestra.envs.worlds.webforms.sites import Control, Goal, Site

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ margin: 0; font: 12px sans-serif; }}
#do {{ display: none; }}
.row {{ position: absolute; left: {left}px; white-space: nowrap; }}
</style></head>
<body><p id="do">{instruction}</p>
{controls}
<script>
const site = {site};
{script}
</script></body></html>
"""
SCRIPT = Path(__file__).with_name("page.js")


def page(site: Site, state: State, goal: Goal, *, renamed: bool = False) -> str:
    """The HTML text of a site in a state.

    Args:
        renamed: whether the labels are those of a renamed site.
    """
    words = ", ".join(f"{key} {value}" for key, value in goal.words)
    rows = [_row(i, control, renamed=renamed) for i, control in enumerate(site.controls) if control.role != "hidden"]
    model = {
        "controls": [
            {
                "name": control.name,
                "role": control.role,
                "screen": control.screen,
                "group": control.group,
                "leads": control.leads,
                "sets": control.sets,
                "does": control.does,
                "value": value,
            }
            for control, value in zip(site.controls, state.values, strict=True)
        ],
        "screen": state.screen,
        "query": state.query,
        "page": state.page,
        "perPage": PER_PAGE,
        "top": TOP,
        "line": LINE,
    }
    return PAGE.format(
        title=escape(site.kind),
        instruction=escape(f"do: {words}."),
        left=LEFT,
        controls="\n".join(rows),
        site=json.dumps(model).replace("<", "\\u003c"),
        script=SCRIPT.read_text(encoding="utf-8"),
    )


def write_page(path: Path, site: Site, state: State, goal: Goal, *, renamed: bool = False) -> None:
    """Write the HTML file of a site in a state."""
    path.write_text(page(site, state, goal, renamed=renamed), encoding="utf-8")


def _row(place: int, control: Control, *, renamed: bool) -> str:
    label = escape(control.other if renamed and control.other else control.name)
    width, height = SIZES.get(control.role, (100, 20))
    size = f'style="width:{width}px;height:{height}px;margin:0;box-sizing:border-box"'
    match control.role:
        case "field":
            inner = f'<input type="text" placeholder="{label}" {size}>'
        case "checkbox" | "radio":
            inner = f'<label><input type="{control.role}" {size}>{label}</label>'
        case "button" | "tab":
            inner = f'<button type="button" {size}>{label}</button>'
        case "link":
            inner = f'<a href="#">{label}</a>'
        case _:
            inner = f"<span>{label} {escape(control.start)}</span>"
    return f'<div class="row" data-place="{place}">{inner}</div>'
