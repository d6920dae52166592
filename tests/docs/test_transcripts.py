"""What must hold of the transcripts in pages: (1) each is what the command prints now; (2) a stale one is found;
(3) one that is kept is left alone by the check, and played again on demand.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("transcripts", ROOT / "docs" / "transcripts.py")
transcripts = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(transcripts)

PAGES = sorted(page.name for page in transcripts.PAGES.glob("*.md"))
STALE = "<!-- transcript{}: palaestra play toolcalc --policy expert --seed 3 -->\n```text\nold\n```\n"


@pytest.mark.parametrize("name", PAGES)
def test_1_pages_say_what_is_printed(name):
    page = transcripts.PAGES / name
    assert transcripts.renewed(page, kept=False) == page.read_text(encoding="utf-8")


def test_2_a_stale_one_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(STALE.format(""), encoding="utf-8")
    assert transcripts.stale(tmp_path) == ["page.md"]
    assert transcripts.main([str(page)]) == 0
    assert transcripts.stale(tmp_path) == []
    assert "player> answer   (reward 1)" in page.read_text(encoding="utf-8")


def test_3_one_that_is_kept(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(STALE.format(" (kept)"), encoding="utf-8")
    assert transcripts.stale(tmp_path) == []
    transcripts.main([str(page)])
    assert "old" not in page.read_text(encoding="utf-8")
