"""The strategy `dual_branch`: (1) a twin has the same actions after the uncompressed history; (2) where both branches
agree there is no twin; (3) a context without compression is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from palaestra.chat import FullHistory
from palaestra.data import StepTable
from palaestra.data.protocols import Sampling
from palaestra.errors import ContractError
from palaestra.systems.hicon_agent.sampled_history import SampledHistory
from palaestra.systems.hicon_agent.strategy import DualBranch
from tests.rollout.arena import AGENT, Arena, same


def test_twins(tiny: Any) -> None:  # rule 1
    arena = Arena(tiny, context=SampledHistory(most=2, lam=9.0, compress=True), edits=4, lines=2, numbers=2)
    rollout = arena.rollout()
    found = arena.run(DualBranch(), arena.plays(2, 2), rollout)
    played, twins = found[:4], found[4:]
    assert len(twins) == 4 and rollout.metrics["branch/twins"] == 1.0 and rollout.metrics["branch/read"] < 1
    whole = Arena(tiny, context=SampledHistory(most=2, lam=9.0)).setup.role(AGENT)
    for one, twin in zip(played, twins, strict=True):
        assert (twin.group, twin.sample) == (one.group, one.sample + 2)
        session = whole.policy.session(context=whole.context, sampling=Sampling(), key=(one.group, one.sample, AGENT))
        past: list[int] = []
        for now, then in zip(twin.steps, one.steps, strict=True):
            taken = session.replay(then.observation, then.action)  # type: ignore[attr-defined]
            assert np.array_equal(taken.prompt, now.prompt) and taken.segment == now.segment
            assert now.action.tokens is then.action.tokens
            seen = tiny.renderer.observation(then.observation, first=True).tolist()
            assert one.prompt_of(then).tolist() == past + seen  # all past actions and the present observation
            past += then.action.tokens.tolist()
            assert (then.marks.branch, now.marks.branch, now.marks.foreign) == (0.0, 1.0, 1.0)
            assert then.marks.pair == now.marks.pair == one.sample
    assert len(rollout.played) == 4
    StepTable.from_trajectories(found)


@pytest.mark.parametrize("options", [{"edits": 1}, {"edits": 3, "most": 0}])
def test_no_twin_where_branches_agree(tiny: Any, options: dict[str, Any]) -> None:  # rule 2
    context = SampledHistory(most=options.pop("most", 2), compress=True)
    arena, plays = Arena(tiny, context=context, **options), Arena(tiny, **options).plays()
    assert same(arena.run(DualBranch(), plays, arena.rollout()), arena.runner.collect(plays))


@pytest.mark.parametrize("context", [FullHistory(), SampledHistory()])
def test_uncompressed_contexts_are_refused(tiny: Any, context: Any) -> None:  # rule 3
    arena = Arena(tiny, context=context)
    with pytest.raises(ContractError, match="no history is compressed: programmer"):
        arena.run(DualBranch(), arena.plays(1, 1), arena.rollout())
