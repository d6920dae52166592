"""`palaestra show` prints what a role reads first, special tokens included, and how its reply is read."""

from __future__ import annotations

import pytest

from palaestra.commands import show


def test_the_first_prompt_is_shown_as_text_and_as_ids(capsys: pytest.CaptureFixture[str]) -> None:
    show.run(recipe=["dpo/sums.yaml", "agents.solver.reader=last_line"], smoke=True)
    out = capsys.readouterr().out
    assert "role solver, policy main" in out and "<|observation|>" in out and "'<|end|>'" in out
    assert "reader: LastLine. The act is the last line" in out
    count = int(out.split("--- prompt, ")[1].split()[0])
    assert len(out.split("--- ids\n")[1].split("\n---")[0].split()) == count
