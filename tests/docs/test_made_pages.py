"""Pages that the site makes: (1) every key of a recipe stands on the page of keys, with its kind, default and meaning,
and nothing else does; (2) every environment and every panel is on the list of environments; (3) every study is on the
table of studies once, under its verdict; (4) what is made is not committed; (5) the table of what chat models do; (6)
the tables of promises: every promise that a test tries is in them, with what was found; (7) the table of TRL's chat
templates has each of them once, with the reason of a difference; (8) the overview lists every system by family, and a
system's page has its other names, its symbols and the parts of its paper.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess

import made_pages
import pytest
from site_pages.environments import environments_page
from site_pages.evidence import evidence_of, studies_page, system_page
from site_pages.games import games_tables
from site_pages.keys import MEANINGS, keys_page, sections
from site_pages.reference import MARK as FAMILIES_MARK
from site_pages.reference import families_list
from site_pages.reliability import MARK as PROMISES
from site_pages.reliability import committed, reliability_tables
from site_pages.templates import MARK as TEMPLATES
from site_pages.templates import templates_table
from site_pages.zero_shot import MARK, RESULT, zero_shot_tables

from palaestra.catalogue import studies, systems
from tests.attack.table import suites
from tests.docs.pages import ROOT, every_page
from tests.extras import skip_without
from tests.registered import declared

KEYS = {place: {*model.model_fields} for place, model in sections()}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def test_1_every_key_has_a_meaning() -> None:
    assert {place: {*keys} for place, keys in MEANINGS.items()} == KEYS
    assert {"", "agents.*", "agents.*.tools", "policies.*", "rollout", "training", "evaluation"} <= {*KEYS}


def test_1_the_page_has_every_key() -> None:
    rows = [line for line in keys_page().splitlines() if line.startswith("| `")]
    assert len(rows) == sum(map(len, KEYS.values()))
    assert "| `group` | `int ≥ 1` | `8` | Trajectories of each task. |" in rows
    assert not [row for row in rows if len(cells(row.replace("\\|", ""))) != 4 or row.endswith("|  |")]


def test_2_every_environment_and_panel() -> None:
    page = environments_page(ROOT, declared())
    names = [part.name for part in declared() if part.slot == "environment"]
    assert len(names) > 40 and all(page.count(f"| [`{name}`](") == 1 for name in names)
    panels = json.loads((ROOT / "palaestra/envs/kit/panels.json").read_text(encoding="utf-8"))
    assert all(f"| `{name}` |" in page for name in panels)
    assert re.search(r"\| \[`shop`\]\(environments/shop.md\) \| .* \| 1.00 \| 0.02 \| – \|", page)


def test_3_every_study() -> None:
    evidence = [evidence_of(ROOT, study) for study in studies(ROOT)]
    page = studies_page(evidence, systems())
    for each in evidence:
        section = page.partition(f"\n## {each.verdict.capitalize()}: ")[2].partition("\n## ")[0]
        assert section.count(f"[{each.study.name}](") == 1 and page.count(f"[{each.study.name}](") == 1


def test_3_games() -> None:
    assert games_tables(ROOT).count("| `TicTacToe-v0` |") == 1


def test_4_what_is_made_is_not_committed() -> None:
    skip_without("git")
    listed = subprocess.run(["git", "ls-files", "docs"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no checkout")
    made = {page.name for page in every_page()} - {page.name for page in every_page() if page.path.exists()}
    assert len(made) > 80 and not made & {*listed.stdout.splitlines()}


def test_5_what_models_do_before_training() -> None:
    found = json.loads((ROOT / RESULT).read_text(encoding="utf-8"))["models"]
    rows = [line for line in zero_shot_tables(ROOT).splitlines() if line.startswith("| `")]
    assert len(rows) == sum(map(len, found.values())) and all(len(cells(row)) == 7 for row in rows)
    assert MARK in (ROOT / "docs/chat-models.md").read_text(encoding="utf-8")


def marked() -> set[str]:
    """The promises of the decorators in tests/attack."""
    code = [ast.parse(file.read_text(encoding="utf-8")) for file in (ROOT / "tests/attack").glob("test_*.py")]
    calls = [node for each in code for node in ast.walk(each) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "promise"]
    return {ast.literal_eval(call.args[0]) for call in named}


def test_6_promises() -> None:
    found, page = committed(ROOT), (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    rows = {row["promise"]: row for row in found["promises"]}
    assert len(rows) == len(found["promises"]) and page.count(PROMISES) == 1
    assert rows.keys() == marked() | {suite["promise"] for suite in suites()}, "make attack, and commit its table"
    lines = [cells(line) for line in reliability_tables(found).splitlines() if line.startswith("| ")]
    for text, row in rows.items():
        ((_, how, trials, state),) = [line for line in lines if line[0] == text]
        assert all(one in how for one in row["how"]) and int(trials.replace(",", "")) == row["trials"]
        assert state == row["state"] == ("broken" if row["broken"] else "held" if row["trials"] else "not tried")
        assert state != "broken" or text in page, "the page says what holds instead"


def test_7_chat_templates() -> None:
    rows = [line for line in templates_table(ROOT).splitlines() if line.startswith("| `")]
    assert len(rows) > 70 and len({cells(row)[0] for row in rows}) == len(rows)
    different = [cells(row) for row in rows if not row.endswith("| yes |")]
    assert {row[0] for row in different} >= {"`gptoss`", "`llama3_1`"}
    assert all(row[-1].startswith("no: ") and row[-1].endswith(".") for row in different)
    page = (ROOT / "docs/chat-models.md").read_text(encoding="utf-8")
    assert TEMPLATES in page and TEMPLATES not in made_pages.on_page_markdown(page)


def test_8_systems_by_family() -> None:
    listed = families_list(systems())
    assert not [each.name for each in systems() if not each.variant and f"(methods/{each.name}.md)" not in listed]
    assert FAMILIES_MARK in (ROOT / "docs/overview.md").read_text(encoding="utf-8")
    assert "made: systems" not in made_pages.on_page_markdown(FAMILIES_MARK)


def test_8_what_a_system_is() -> None:
    gigpo = next(each for each in systems() if each.name == "gigpo")
    page = system_page(gigpo, declared(), [])
    assert gigpo.aliases[0] in page and "## Parts of the paper" in page and "| absent |" in page
    assert "- `ω`: " in page and page.count("\n- `") >= len(gigpo.symbols)
