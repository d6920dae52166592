"""A tiny world of parts, written to a folder of its own, in place of the package's registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from palaestra.registry import SLOTS, lookup

PARTS = """
from palaestra.registry import Discount, PositiveInt, register


@register("environment", "yard")
class Yard:
    abilities = ("expert",)
    provides = frozenset({"state_key", "outcome"})

    def __init__(self, *, size: PositiveInt = 3, level: str = "easy", mix: dict[str, float] = {}): ...

    def expert(self, agent): ...


@register("environment", "fog")
class Fog:
    abilities = ()
    provides = frozenset({"outcome"})


@register("environment", "riddle")
class Riddle:
    def expert(self, agent): ...


@register("policy", "words")
class Words:
    def __init__(self, name, setting, *, hidden: PositiveInt = 64, value_head: bool = False): ...

    @staticmethod
    def abilities(options):
        return frozenset({"tokens", "critic"} if options["value_head"] else {"tokens"})


@register("policy", "unknown")
class Unknown:
    pass


@register("advantage", "grpo", uses=("group",))
def grpo(table, *, scale: str = "std"): ...


@register("advantage", "gigpo", reads=("group", "reward", "state_key"), uses=("group",))
def gigpo(table, *, gamma: Discount = 0.95, step_weight: float = 1.0): ...


@register("advantage", "ppo", uses=("critic",))
def ppo(table, *, gamma: Discount = 1.0): ...


@register("advantage", "reinforce")
def reinforce(table): ...


@register("advantage", "whiten")
def whiten(table, advantage): ...


@register("regularizer", "kl", reads=("logprob_reference",))
def kl(batch, *, coefficient: float = 0.1): ...


@register("regularizer", "entropy", reads=("entropy",))
def entropy(batch, *, coefficient: float = 0.01): ...


@register("loss", "ppo_clip", reads=("logprob_old", "advantage"))
def ppo_clip(batch, *, low: float = 0.2): ...


@register("optimizer", "adamw")
def adamw(parameters, *, lr: float, weight_decay: float = 0.0): ...


@register("reader", "bare")
class Bare: ...


@register("context", "full_history")
class FullHistory: ...


@register("context", "window")
class Window:
    def __init__(self, *, turns: PositiveInt = 4): ...


@register("program", "play")
def play(episode): ...


@register("rollout", "episodes")
def episodes(stage, settings): ...


@register("engine", "in_process")
class InProcess: ...


@register("experience", "rollout")
def rollout(setup): ...


@register("learner", "policy_gradient", reads=())
class PolicyGradient:
    runs = staticmethod(lambda settings, policy: [])


@register("sampler", "uniform")
def uniform(source): ...


@register("reward", "environment")
def environment(table): ...
"""

BASE = """\
environment: yard
policies:
  main:
    policy:
      words:
        hidden: 32
"""

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and a registry of just these parts."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "parts.py"
    file.write_text(PARTS)
    index: dict[str, dict[str, str]] = {slot: {} for slot in SLOTS}
    for line in PARTS.splitlines():
        if line.startswith("@register"):
            slot, name = line.split('"')[1::2][:2]
        elif line.startswith(("class ", "def ")):
            index[slot][name] = f"{file}:{line.split()[1].split('(')[0].rstrip(':')}"
    monkeypatch.setattr(lookup, "index", lambda: index)
    return tmp_path


@pytest.fixture
def write(world: Path) -> Write:
    """Write a recipe into the working folder: `write("a.yaml", text)`."""

    def write(name: str, text: str) -> Path:
        (world / name).parent.mkdir(parents=True, exist_ok=True)
        (world / name).write_text(text)
        return Path(name)

    return write


@pytest.fixture
def base(write: Write) -> Path:
    """The smallest recipe, `base.yaml`."""
    return write("base.yaml", BASE)


def options_of(recipe: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for used in recipe.parts:
        if used.path == path:
            yield used.name, used.values


@pytest.fixture
def used() -> Callable[[Any, str], list[tuple[str, dict[str, Any]]]]:
    """Names and options of the parts at one place: `used(recipe, "advantage")`."""
    return lambda recipe, path: list(options_of(recipe, path))
