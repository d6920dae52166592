"""What tools say is never trained on, in episodes whose turns stand in one sequence: (1) every response token, and no
other, has a gradient: where the next token is an observation's it is exactly 0; (2) it is that of a sum over all tokens
of the sequence with the mask 0 on observations; (3) unreadable calls come back as observations, masked like all others.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from palaestra.chat import FullHistory
from palaestra.data import Play, RunSetup, Trajectory, derive, rows_of
from palaestra.engines import InProcessEngine
from palaestra.envs.probes.toolcalc import ToolCalc
from palaestra.policies.language import LanguagePolicy
from palaestra.registry import part
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings


@pytest.fixture(scope="module")
def policy() -> LanguagePolicy:
    env = ToolCalc()
    texts = [env.reset(task).observations["player"].text for task in env.tasks("train", 30, 0)] + [*env.actions] * 4
    setup = RunSetup(seed=0, texts=lambda: texts)
    made = LanguagePolicy("main", setup, hidden=32, layers=1, heads=2, context=512, vocabulary=320)
    made.engine = InProcessEngine(models={"main": made.model})
    return made


@pytest.fixture(scope="module")
def played(policy: LanguagePolicy) -> list[Trajectory]:
    setup = RunSetup(
        environment_name="toolcalc",
        make_environment=ToolCalc,
        roles={"*": Role(policy=policy, context=FullHistory())},
        program=part("program", "play").target,
        environment_options={},
    )
    tasks = ToolCalc().tasks("train", 4, 0)
    plays = [Play(task=task, group=str(i), sample=0, seed=derive(0, i)) for i, task in enumerate(tasks)]
    return EpisodeRunner(setup, RolloutSettings(max_turns=4, response_tokens=5)).collect(plays)


def masks(trajectory: Trajectory) -> tuple[Tensor, Tensor]:
    """The ids of an episode's one sequence, and which of them the policy sampled."""
    ids = trajectory.sequence("player", 0)
    pieces = [np.repeat([False, True], [len(s.prompt), len(s.action.tokens)]) for s in trajectory.steps]
    return torch.from_numpy(ids).long(), torch.from_numpy(np.concatenate(pieces))


def test_observations_have_no_gradient(policy: LanguagePolicy, played: list[Trajectory]) -> None:  # rules 1 and 3
    assert any("cannot read" in (step.observation.text or "") for t in played for step in t.steps)
    hidden: list[Tensor] = []

    def kept(module: Any, given: Any, output: Any) -> None:
        output.last_hidden_state.retain_grad()
        hidden.append(output.last_hidden_state)

    policy.model.base_model.register_forward_hook(kept)
    for trajectory in played:
        samples = policy.collate(rows_of([trajectory]), temperature=1.0)
        assert len(samples.cost) == 1, "all turns stand in one sequence"
        policy.forward(samples, [0], ("logprob",))["logprob"].sum().backward()
        ids, sampled = masks(trajectory)
        gradient = hidden[-1].grad
        assert gradient is not None and int((~sampled).sum()) > int(sampled.sum())
        moved = (gradient[0, : len(ids) - 1] != 0).any(-1)
        assert torch.equal(moved, sampled[1:]), "the place before a token decides on it"


def test_it_is_the_masked_sum(policy: LanguagePolicy, played: list[Trajectory]) -> None:  # rule 2
    trajectory = played[0]
    samples = policy.collate(rows_of([trajectory]), temperature=1.0)
    policy.module.zero_grad()
    policy.forward(samples, [0], ("logprob",))["logprob"].sum().backward()
    found = [p.grad.clone() for p in policy.module.parameters() if p.grad is not None]
    ids, sampled = masks(trajectory)
    policy.module.zero_grad()
    logprob = policy.model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
    (logprob * sampled[1:]).sum().backward()
    wanted = [p.grad for p in policy.module.parameters() if p.grad is not None]
    assert len(found) == len(wanted) > 0
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(found, wanted, strict=True))
