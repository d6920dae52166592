"""A role's instruction reaches the prompt, and its reader decides what the environment gets."""

from __future__ import annotations

from typing import Any

import pytest

from palaestra.chat.readers import Tagged
from palaestra.data import Action, Play, RunSetup
from palaestra.envs.probes.sums import Sums
from palaestra.rollout.programs import demonstrate, play
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.store.episodes import from_json, to_json
from palaestra.testing import ScriptedPolicy


class TalkingSums(Sums):
    abilities = (*Sums.abilities, "instruction")

    def instruction(self, agent: str) -> str:
        return f"You are {agent}. Answer with a number."


def played(reply: Any, *, program: Any = play, **role: Any) -> Any:
    env = TalkingSums()
    setup = RunSetup(environment_name="sums", make_environment=TalkingSums, source=env, program=program)
    setup.roles = {"*": Role(policy=ScriptedPolicy(reply, name="p"), **role)}
    (task,) = env.tasks("train", 1, 0)
    runner = EpisodeRunner(setup, RolloutSettings(max_turns=2))
    try:
        (found,) = runner.collect([Play(task=task, group="g", sample=0, seed=0)])
    finally:
        runner.close()
    return found


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (None, None),
        ("none", None),
        ("environment", "You are {agent}. Answer with a number."),
        ("Be quick. {environment}", "Be quick. You are {agent}. Answer with a number."),
        ("Be quick.", "Be quick."),
    ],
)
def test_the_instruction_is_the_one_that_the_recipe_chooses(said: str | None, told: str | None) -> None:
    step = played(lambda *_: "3", instruction=said).steps[0]
    assert step.observation.instruction == (None if told is None else told.format(agent=step.agent))


def test_the_environment_gets_the_act_and_the_trajectory_keeps_the_reply() -> None:
    found = played(lambda *_: "<think>2 + 1</think><action>3</action>", reader=Tagged(), instruction="environment")
    action = from_json(to_json(found)).steps[0].action
    assert (action.text, action.value, action.reply) == ("3", "3", "<think>2 + 1</think><action>3</action>")
    assert found.steps[0].observation.instruction.endswith(Tagged().explain())


def test_a_reply_without_an_act_is_invalid_and_empty() -> None:
    step = played(lambda *_: "it is 3", reader=Tagged()).steps[0]
    assert (step.action.text, step.action.reply, step.info["invalid"]) == ("", "it is 3", 1.0)


def test_a_demonstration_is_written_in_the_form_that_is_read() -> None:
    step = played(lambda *_: "", program=demonstrate, reader=Tagged()).steps[0]
    assert step.action.reply == f"<action>{step.action.text}</action>" and step.action.value == step.action.text
    assert Tagged().read(step.action.reply) == step.action.text and isinstance(step.action, Action)
