"""Fits a pretrained chat model into a recipe: the layer `chat`, as in `palaestra train gigpo chat`.

The layer is computed from the recipe that stands before it:

    policies            networks, and language models that are made on the spot, become `MODEL` with low-rank additions;
                        several of them become adapters on one such model
    agents              roles of these policies read the environment's instruction, and act in their last line
    rollout.runner      a runner for networks alone becomes the default one
    warm_start          stays, shorter, with a learning rate for low-rank additions
    optimizer           AdamW gets a learning rate for low-rank additions; another optimizer stays as it is
    the keys of INSTEAD get the value there; numbers beyond `LARGEST` and `SMALLEST` become these numbers

Everything else is the recipe's. Layers after it, and overrides, win over it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from palaestra.data.abilities import has
from palaestra.errors import RecipeError
from palaestra.recipe.layers import override
from palaestra.recipe.origins import Mark, Node, node_of
from palaestra.recipe.resolved import Recipe
from palaestra.recipe.sources import CHAT
from palaestra.registry import declared
from palaestra.registry.column_names import ability_of
from palaestra.rollout.settings import RolloutSettings
from palaestra.training.settings import PolicySettings, RunSettings

BASE = "chat"  # the name of the policy below several adapters
MODEL = "SmolLM2-135M-Instruct"  # which `palaestra model` fetches
ADDITIONS = {"rank": 16, "alpha": 32}
RATE, CLONING_RATE = 2e-4, 5e-4  # of low-rank additions
OF_ALL_WEIGHTS = 0.1  # times these rates, if a part needs all weights to be trained
LARGEST: dict[str, int] = {
    "training.iterations": 40,
    "training.epochs": 2,
    "training.minibatches": 4,
    "rollout.tasks": 8,
    "rollout.group": 8,
    "warm_start.episodes": 192,
    "warm_start.epochs": 2,
    "evaluation.tasks": 64,
}
SMALLEST: dict[str, int] = {"rollout.response_tokens": 48, "warm_start.batch_tokens": 1536}
INSTEAD: dict[str, Any] = {
    "dtype": "auto",
    "run": None,
    "training.token_budget": None,
    "training.threads": None,
    "warm_start.keep": None,
    "evaluation.temperature": 1.0,
}
REPLACED = ("network", "language")


def fitted(recipe: Recipe, layer: int) -> Node:
    """The tree of a recipe with a pretrained model. The origin of each changed value is `chat (was 150)`.

    Args:
        layer: number of this layer.

    Raises: RecipeError, if the recipe has no policy whose place such a model can take.
    """
    tree = recipe.tree
    for key, value in _changes(recipe):
        former = recipe.rows[key].value if key in recipe.rows else None
        source = CHAT if former is None else f"{CHAT} (was {former})"
        if isinstance(value, dict):  # a part: its former options go
            tree = override(tree, key, Node(None, Mark(source, layer=layer)))
        tree = override(tree, key, node_of(value, Mark(source, f"{key}: {value}", layer=layer)))
    return tree


def _changes(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    settings, rows = recipe.settings, recipe.rows
    whole = any("transformer" in used.part.uses for used in recipe.parts)
    yield "name", f"{settings.name}-{CHAT}"
    yield from _policies(recipe, whole=whole)
    if declared(settings.rollout.runner.part.target, "lock_step"):
        yield "rollout.runner", RolloutSettings().runner.name
    for key, number in (*LARGEST.items(), *SMALLEST.items()):
        if key in rows and (rows[key].value > number if key in LARGEST else rows[key].value < number):
            yield key, number
    for key, value in INSTEAD.items():
        if key in rows and rows[key].value != value:
            yield key, value
    share = OF_ALL_WEIGHTS if whole else 1.0
    for key, rate in _rates(recipe):
        yield key, {"adamw": {"lr": rate * share, "warmup": 2, "clip": 1.0}}


def _rates(recipe: Recipe) -> Iterator[tuple[str, float]]:
    """The keys of the optimizers AdamW, each with its rate."""
    for used in recipe.parts:
        if used.part.slot == "optimizer" and used.name == "adamw":
            yield used.path, CLONING_RATE if used.path.startswith("warm_start") else RATE


def _policies(recipe: Recipe, *, whole: bool) -> Iterator[tuple[str, Any]]:
    """The changes of policies and of the roles that they play.

    Args:
        whole: all weights are trained.
    """
    settings = recipe.settings
    taken = [name for name, policy in settings.policies.items() if _is_replaced(policy)]
    below = {_base_of(policy) for policy in settings.policies.values()}
    _refuse(recipe, taken)
    critic = any(
        "critic" in (*used.part.uses, *map(ability_of, used.part.reads_with(used.values) or ()))
        for used in recipe.parts
    )
    free = [name for name in taken if name not in below]
    shared = len(free) > 1 and not whole
    if shared:
        yield f"policies.{BASE}", {"policy": {"language": {"model": MODEL}}, "trainable": False}
    for name in taken:
        options: dict[str, Any] = {"value_head": True} if critic and name in free else {}
        if shared and name in free:
            yield f"policies.{name}.policy", {"adapter": {"of": BASE, **ADDITIONS, **options}}
            continue
        trained = settings.policies[name].trainable and not whole
        additions = {"lora": dict(ADDITIONS)} if trained else {}
        yield f"policies.{name}.policy", {"language": {"model": MODEL, **additions, **options}}
    adapters = [name for name, policy in settings.policies.items() if _base_of(policy) in taken]
    for role, chosen in settings.agents.items():
        if chosen.policy in (*taken, *adapters):
            if chosen.instruction is None and has(settings.environment.part.target, "instruction"):
                yield f"agents.{role}.instruction", "environment"
            if chosen.reader.name == "bare" and not chosen.tools.use and not chosen.tools.native:
                yield f"agents.{role}.reader", "last_line"
            # What a network reads says all that it needs, so its world needs no history.
            network = chosen.policy in taken and settings.policies[chosen.policy].policy.name == "network"
            if network and recipe.tree.get("agents", role, "context") is None:
                yield f"agents.{role}.context", "latest_only"


def _is_replaced(policy: PolicySettings) -> bool:
    """Whether a pretrained model takes the place of this policy."""
    pretrained = policy.policy.name == "language" and (policy.load or policy.policy.options.get("model"))
    return policy.policy.name in REPLACED and not pretrained


def _base_of(policy: PolicySettings) -> str | None:
    stands_on = declared(policy.policy.part.target, "stands_on")
    return None if stands_on is None else stands_on(policy.policy.options)


def _refuse(recipe: Recipe, taken: list[str]) -> None:
    """Raises: RecipeError, if nothing can be fitted."""
    settings: RunSettings = recipe.settings
    for name, policy in settings.policies.items():
        if policy.trainable and name not in taken and _is_other(policy):
            raise RecipeError(
                where=recipe.rows[f"policies.{name}.policy"].mark.where,
                what=f"`{CHAT}` puts a pretrained model in the place of a network or a small language model. Policy "
                f"`{name}` is of the kind `{policy.policy.name}`.",
                remedy=f"Leave `{CHAT}` out.",
            )
    if not taken:
        raise RecipeError(
            where=CHAT,
            what="the recipe has a pretrained model already."
            if any(policy.policy.name == "language" for policy in settings.policies.values())
            else "no policy of this recipe is a network, or a language model that is made on the spot.",
            remedy=f"Leave `{CHAT}` out. Another model: policies.NAME.policy.language.model=FOLDER.",
        )
    environment, has_words = (
        settings.environment,
        any(settings.policies[name].policy.name != "network" for name in taken),
    )
    if not has_words and not has(environment.part.target, "instruction"):
        raise RecipeError(
            where=recipe.rows["environment"].mark.where,
            what=f"environment `{environment.name}` has no instruction, so a chat model cannot know what to do in it.",
            remedy="Give it the ability `instruction`, or leave `chat` out.",
        )


def _is_other(policy: PolicySettings) -> bool:
    """Whether a trained policy is neither a language policy nor an adapter, which stay as they are."""
    return policy.policy.name not in (*REPLACED, "adapter")
