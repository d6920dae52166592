"""Plans the passes of the models in an iteration of a recipe. `palaestra explain` shows them with the parts that ask
for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.recipe.parts import RecipePart
from palaestra.registry import STAGES, declared
from palaestra.training.passes import PassPlan, Reader, plan_passes
from palaestra.training.settings import RunSettings

USUAL = frozenset({"logprob", "entropy", "value"})  # outputs of a policy that declares none


def planned_passes(settings: RunSettings, parts: Sequence[RecipePart]) -> dict[str, PassPlan]:
    """Name of each trained policy → its plan."""
    of_table = [_reader(used) for used in parts if used.part.slot in STAGES]
    plans = {}
    for policy in (used for used in parts if used.part.slot == "policy" and used.owner is not None):
        name = str(policy.owner)
        if not settings.policies[name].trainable:
            continue
        learners = [used for used in parts if used.part.slot == "learner"]
        runs_loss = any(declared(used.part.target, "runs") is not None for used in learners)
        of_update = [used for used in parts if used.part.slot in ("loss", "regularizer") and runs_loss]
        own = [_reader(used) for used in (*learners, *(u for u in of_update if _works_for(u, name, settings)))]
        outputs_with = declared(policy.part.target, "outputs_with")
        gives = USUAL if outputs_with is None else outputs_with(policy.values)
        plans[name] = plan_passes(of_table, own, gives=gives, several_updates=settings.several_updates)
    return plans


def lines(plans: dict[str, PassPlan]) -> list[str]:
    """The plans as lines of text, policy by policy."""
    return [line for name, plan in plans.items() for line in (f"passes of policy {name}", *_indented(plan.lines()))]


def _indented(texts: Sequence[str]) -> list[str]:
    return [f"  {text}" for text in texts]


def _reader(used: RecipePart) -> Reader:
    return Reader(
        name=f"{used.part.slot}: {used.name}",
        reads=used.part.reads_with(used.values),
        frozen_minibatch=used.part.frozen_minibatch,
    )


def _works_for(used: RecipePart, policy: str, settings: RunSettings) -> bool:
    """Whether a policy uses this loss or regularizer: its own, or the recipe's if it has none of its own."""
    if used.owner is not None:
        return used.owner == policy
    return getattr(settings.policies[policy], used.path) is None
