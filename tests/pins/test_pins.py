"""(1) The fastest pins hold: every number on the processor that made them, four digits of each elsewhere. `make pins`
compares all of them. (2) The comparison can fail.
"""

from __future__ import annotations

import copy
import json

import pytest

from tests.pins import record

# About a second each; together they pass two policies in a team, a tree of sub-agents, critics that learn, self-play,
# three ratios of the loss, and a part with modules of its own.
FAST = [
    "critics-team",
    "frozen-sub",
    "importance",
    "loss-gspo",
    "relay-m-grpo",
    "rooms-archer",
    "rooms-gigpo",
    "rooms-ppo",
    "self-play",
]


@pytest.mark.parametrize("name", FAST)
def test_1_pins_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(record.ROOT)  # pay.py is named from here
    exact = record._read("machine")["machine"] == record.machine()
    found = json.loads(json.dumps(record.run(name)))
    assert not [*record.differences(record._read(name), found, exact=exact)]


def test_2_a_change_is_seen() -> None:
    expected = record._read("rooms-gigpo")
    changed = copy.deepcopy(expected)
    key = next(key for key, value in changed["norms"].items() if value)
    changed["norms"][key] *= 1.001
    changed["weights"] = {}
    assert [text.partition(":")[0] for text in record.differences(expected, changed, exact=False)] == [f"/norms/{key}"]
    assert len([*record.differences(expected, changed, exact=True)]) > 1
