"""What must hold of the transcripts in pages: (1) each command of a page plays an episode to its end; (2) the page that
the site shows has the command and what it prints; (3) text that the page holds itself is left alone.
"""

from __future__ import annotations

import re

import pytest
import transcripts

from tests.docs.pages import ROOT

PAGES = sorted(
    path for path in (ROOT / "docs" / "environments").glob("*.md") if transcripts.MARK.search(path.read_text())
)
MARKED = "<!-- transcript: palaestra play toolcalc --policy expert --seed 3 -->\n\nText.\n"


SLOW = {"scienceworld": pytest.mark.slow}  # starts Java; its own tests do so too


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem, marks=SLOW.get(page.stem, ())) for page in PAGES])
def test_1_episodes_are_played_to_their_end(page):
    commands = [mark["command"] for mark in transcripts.MARK.finditer(page.read_text(encoding="utf-8"))]
    for command in commands:
        assert re.search(r"^\w+ after \d+ acts; reward: ", transcripts.printed(command), re.MULTILINE), command


def test_1_most_environments_have_one():
    assert len(PAGES) >= 20


def test_2_the_page_shows_what_is_printed():
    page = transcripts.filled(MARKED)
    assert "<!--" not in page and "`palaestra play toolcalc --policy expert --seed 3`" in page
    assert "player> answer   (reward 1)" in page and page.endswith("```\n\nText.\n")


def test_3_other_text_stays():
    kept = "`palaestra play textworld --policy expert --seed 1`\n\n```text\nplayer> go west\n```\n"
    assert transcripts.filled(kept) == kept
