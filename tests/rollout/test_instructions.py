"""Instructions: (1) what a play says to everybody is on every observation and at the head of every segment, once;
(2) prompts behind it are those without it; (3) a tag spelled in it stays text; (4) a network policy refuses it;
(5) a chat template puts it into a system message; one without system messages is refused; (6) episodes keep it in
their JSON; (7) second models' next prompts have it too; (8) demonstrations under guidance.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from palaestra.chat import ChatRenderer, FullHistory, LatestOnly, Window
from palaestra.data import Observation, Play, RunSetup, StopReason, Task
from palaestra.errors import InvalidData, RecipeError
from palaestra.policies.network import NetworkPolicy
from palaestra.rollout.programs import play as playing
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.store.episodes import from_json, to_json
from palaestra.systems.dcpo.editable import Editable
from palaestra.testing import EchoEnvironment, TinyModel

SAID = "say it twice"
CONTEXTS = [FullHistory(), LatestOnly(), Window(turns=2), Window(turns=3, drop=2, keep_first=True), Editable(full=9)]


def make_setup(policy: Any, context: Any = None, turns: int = 4) -> RunSetup:
    return RunSetup(
        environment_name="echo",
        make_environment=lambda: EchoEnvironment(turns=turns),
        roles={"*": Role(policy=policy, context=context)},
        program=playing,
        environment_options={},
    )


def played(policy: Any, context: Any = None, **changes: Any) -> Any:
    one = Play(task=Task(env="echo", seed=4), group="g", sample=0, seed=1)
    runner = EpisodeRunner(make_setup(policy, context), RolloutSettings(max_turns=4, response_tokens=2))
    return runner.collect([dataclasses.replace(one, **changes)])[0]


@pytest.mark.parametrize("context", CONTEXTS, ids=lambda c: type(c).__name__)
def test_heads_of_segments(tiny: Any, context: Any) -> None:  # rules 1, 2
    plain, told = played(tiny, context), played(tiny, context, instruction=SAID)
    head = tiny.renderer.instruction(SAID).tolist()
    assert {step.observation.instruction for step in told.steps} == {SAID}
    seen = set()
    for step, bare in zip(told.steps, plain.steps, strict=True):
        prompt = step.prompt.tolist()
        assert (prompt[: len(head)] == head) == (step.segment not in seen)
        if step.segment == 0 and step.turn == 0:
            assert prompt[len(head) :] == bare.prompt.tolist()
        seen.add(step.segment)
        assert step.segment == bare.segment


def test_an_empty_instruction_is_none(tiny: Any) -> None:  # rule 2
    plain, told = played(tiny), played(tiny, instruction="")
    assert all(np.array_equal(a.prompt, b.prompt) for a, b in zip(plain.steps, told.steps, strict=True))
    assert [a.action.text for a in plain.steps] == [b.action.text for b in told.steps]


def test_tags_stay_text(tiny: Any) -> None:  # rule 3
    told = played(tiny, instruction="<|observation|> red <|action|>")
    opened = tiny.tokenizer.get_vocab()["<|observation|>"]
    assert told.steps[0].prompt.tolist().count(opened) == 1


def test_network_policies_refuse() -> None:  # rule 4
    policy = NetworkPolicy("main", RunSetup(seed=0, vector_size=4, action_count=4), hidden=(8,))
    failed = played(policy, instruction=SAID)
    assert failed.stop is StopReason.ERROR and failed.error.boundary == "engine"
    assert "an instruction, which a network policy cannot read" in failed.error.message
    assert played(policy).stop is not StopReason.ERROR


CHAT = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
DEFAULT = "{% if messages[0]['role'] != 'system' %}<system>be kind<|end|>\n{% endif %}" + CHAT
STRICT = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}{% endfor %}"
)
MIXING = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<user>"
    "{% if messages[0]['role'] == 'system' and loop.index == 2 %}"
    "{{ messages[0]['content'] }} {% endif %}{{ m['content'] }}#{{ loop.index }}<|end|>\n"
    "{% elif m['role'] == 'assistant' %}<assistant>{{ m['content'] }}<|end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def chat(template: str) -> ChatRenderer:
    tokenizer = TinyModel().tokenizer
    tokenizer.chat_template = template
    return ChatRenderer(tokenizer)


@pytest.mark.parametrize("template", [CHAT, DEFAULT])
def test_chat_templates(template: str) -> None:  # rule 5
    renderer = chat(template)
    seen = Observation(text="hello", instruction=SAID)
    ids = [*renderer.instruction(SAID), *renderer.observation(seen, first=True)]
    assert renderer._tokenizer.decode(ids) == f"<system>{SAID}<|end|>\n<user>hello<|end|>\n<assistant>"
    plain = renderer._tokenizer.decode(renderer.observation(Observation(text="hello"), first=True))
    assert plain.endswith("<user>hello<|end|>\n<assistant>") and SAID not in plain


@pytest.mark.parametrize(("template", "fault"), [(STRICT + CHAT, "no system message"), (MIXING, "changes the turn")])
def test_templates_without_system_messages(template: str, fault: str) -> None:  # rule 5
    with pytest.raises(InvalidData, match=fault):
        chat(template).instruction(SAID)


def test_json_keeps_it(tiny: Any) -> None:  # rule 6
    told = played(tiny, instruction=SAID)
    assert from_json(to_json(told)).steps[0].observation.instruction == SAID
    assert "instruction" not in to_json(played(tiny))["steps"][0]["observation"]


def test_next_prompts_have_it() -> None:  # rule 7
    policy = TinyModel(value_head=True)
    told = EpisodeRunner(make_setup(policy, LatestOnly()), RolloutSettings(max_turns=2, response_tokens=2)).collect(
        [Play(task=Task(env="echo", seed=4), group="g", sample=0, seed=1, instruction=SAID)]
    )[0]
    head = policy.renderer.instruction(SAID).tolist()
    assert told.next_prompts["player"].ids.tolist()[: len(head)] == head


def test_demonstrations_without_a_teacher() -> None:  # rule 8
    from palaestra.recipe import load
    from palaestra.training.start import train

    recipe = load(
        [{"environment": "echo", "policies": {"main": {"policy": "network"}}, "warm_start": {"guidance": 0.5}}]
    )
    with pytest.raises(RecipeError, match="environment `echo` has no teacher"):
        train(recipe.settings, recipe=recipe.to_json(), quiet=True, overwrite=True)
