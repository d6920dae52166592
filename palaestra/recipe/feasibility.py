"""Refuses recipes that would fail, or silently do nothing, after the run has started.

It compares what parts need (`reads`, `uses`) with what environments, policies and runners declare that they give
(`provides`, `abilities`, `forks`), and it refuses settings that exclude each other. A part that declares nothing is
never refused, since nobody knows what it needs or gives.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from palaestra import registry
from palaestra.data.abilities import ABILITIES, has
from palaestra.errors import RecipeError, nearest
from palaestra.recipe.layers import slot_at
from palaestra.recipe.origins import Node
from palaestra.recipe.parts import Entry, RecipePart
from palaestra.recipe.running import runs
from palaestra.recipe.together import refuse_together
from palaestra.registry import declared
from palaestra.registry.column_names import FROM_EPISODES, FROM_OUTPUTS, OF_TOKENS, ability_of, output_of
from palaestra.registry.options import Aggregation
from palaestra.training.settings import NEED_CONSTANT, RunSettings

ADDITIVE = ("reward", "selection", "weights", "regularizer")  # slots whose parts can be left out one by one


TEACHER = "warm_start.teacher"
WHY = {
    "state_key": "Without it every step is its own state, and comparing equal states compares nothing.",
    "outcome": "Without it no episode counts as solved or failed.",
    "critic": "Without it there is no value to compare a return with.",
    "reference": "Without it there is nothing to keep the policy near to.",
    "group": "A trajectory that is alone in its group equals the group's mean, so every advantage is 0.",
    "expert": "Without one there is nothing to imitate.",
    "transformer": "Without attention there are no logits to bound.",
    "guidance": "Without a teacher a second attempt knows no more than the first.",
}


def check(settings: RunSettings, parts: Sequence[RecipePart], rows: Mapping[str, Entry], tree: Node) -> None:
    """Refuse a recipe that cannot run.

    Args:
        rows: every resolved key with its value and place. tree: the recipe as it was written.

    Raises: RecipeError, with the place at fault and the ways out; UnknownName, for an unknown runner.
    """
    _check_policies(settings, rows)
    _check_settings(settings, rows)
    _check_warm_start(parts, tree.get("warm_start"))
    if declared(settings.rollout.runner.part.target, "lock_step"):
        _check_lock_step(settings, parts)
    for used in (part for part in parts if runs(part, parts)):
        for need in _needs(used, parts):
            _check_need(need, used, settings, parts, rows)
    refuse_together(parts, rows)


# ---- settings ---------------------------------------------------------------------------------------------
def _check_policies(settings: RunSettings, rows: Mapping[str, Entry]) -> None:
    if not settings.policies:
        raise RecipeError(
            where="policies", what="the recipe has no policy.", remedy="Write `policies: {main: {policy: …}}`."
        )
    for role, chosen in settings.agents.items():
        if chosen.policy not in settings.policies:
            who = "every role" if role == "*" else f"role `{role}`"
            raise RecipeError(
                where=rows[f"agents.{role}.policy"].mark.where,
                what=f"{who} is played by policy `{chosen.policy}`, which does not exist.",
                options=nearest(chosen.policy, settings.policies),
                remedy=f"Name a policy of the recipe in `agents.{role}.policy`, or add it under `policies`.",
            )


def _check_settings(settings: RunSettings, rows: Mapping[str, Entry]) -> None:
    how, rollout = settings.aggregate.how, settings.rollout
    if how not in get_args(Aggregation):
        raise RecipeError(
            where=rows["aggregate.how"].mark.where,
            what=f"`aggregate.how` cannot be `{how}`.",
            options=nearest(how, get_args(Aggregation)),
            remedy=f"It is one of: {', '.join(get_args(Aggregation))}.",
        )
    if how in NEED_CONSTANT and settings.aggregate.constant is None:
        raise RecipeError(
            where=rows["aggregate.how"].mark.where,
            what=f"`{how}` divides by `aggregate.constant`, which is not set.",
            remedy="Set it to the generation budget of an episode, for instance max_turns × response_tokens.",
        )
    if rollout.step_seconds is not None and not rollout.workers:
        raise RecipeError(
            where=rows["rollout.step_seconds"].mark.where,
            what="a step that hangs can be given up only in a worker, and `rollout.workers` is 0.",
            remedy="Set rollout.workers=1 or more, or leave `rollout.step_seconds` out.",
        )
    training = settings.training
    if training.max_staleness and rollout.runner.name != "episodes":
        raise RecipeError(
            where=rows["training.max_staleness"].mark.where,
            what="`training.max_staleness` needs episodes that go on while the policies learn, and the runner "
            f"`{rollout.runner.name}` plays only between updates.",
            remedy="Set rollout.runner=episodes, or training.max_staleness=0.",
        )
    for name in ("lag", "actor_noise"):
        if training.max_staleness and getattr(training, name):
            raise RecipeError(
                where=rows[f"training.{name}"].mark.where,
                what=f"`training.{name}` and `training.max_staleness` cannot be combined: both let policies act with "
                "other weights than the current ones.",
                remedy="Set one of them to 0.",
            )
    if settings.strategy and rollout.runner.name == "windows":
        raise RecipeError(
            where=rows["rollout.runner"].mark.where,
            what="the runner `windows` suspends episodes between iterations, and a strategy needs whole episodes.",
            remedy="Leave out `strategy`, or set rollout.runner=episodes.",
        )


def _check_warm_start(parts: Sequence[RecipePart], warm_start: Node | None) -> None:
    environment, taught = _environment(parts), any(part.path == TEACHER for part in parts)
    if warm_start is None or warm_start.value is None or taught or _may_have(environment, "expert"):
        return
    raise RecipeError(
        where=warm_start.mark.where,
        what=f"`warm_start` imitates the environment's expert, and `{environment.name}` has none.\n  {WHY['expert']}",
        remedy=_ways(
            f"give `{environment.name}` a method `expert(agent) -> Action`, and name `expert` in its `abilities`",
            "name a model that plays well in `warm_start.teacher`",
            "leave `warm_start` out (warm_start=null)",
        ),
    )


def _check_lock_step(settings: RunSettings, parts: Sequence[RecipePart]) -> None:
    """Refuse a policy, program, tool or environment that waits, in a runner that plays all episodes in lock step."""
    runner = next(used for used in parts if used.path == "rollout.runner")
    others = [name for name in registry.names("rollout") if not _declares("rollout", name, "lock_step")]
    for used in parts:
        waits = used.path != TEACHER and (used.part.slot == "tool" or declared(used.part.target, "waits"))
        methods = dict(inspect.getmembers(used.part.target, inspect.iscoroutinefunction))
        if waits or (used.path == "environment" and "step" in methods):
            slot, later = used.part.slot, max((runner.mark, used.mark), key=lambda mark: mark.layer)
            raise RecipeError(
                where=later.where,
                what=f"the runner `{runner.name}` plays all episodes in lock step, and {slot} `{used.name}` makes them "
                "wait, as for an engine or a server.",
                options=[f"rollout.runner={name}" for name in others],
                remedy=f"Set rollout.runner={others[0]}, or choose another {slot}.",
            )


# ---- what parts need --------------------------------------------------------------------------------------
def _needs(used: RecipePart, parts: Sequence[RecipePart]) -> Iterator[str]:
    """The columns that the part reads and no other part writes, and the abilities that it needs, each once."""
    reads = [column for column in used.part.reads_with(used.values) or () if not column.endswith("?")]
    written = {column for part in parts if part is not used for column in part.part.writes or ()}
    columns = {"state_key" if column == "next_key" else column for column in reads} - FROM_EPISODES - written
    abilities = {ability for column in columns if (ability := ability_of(column))}
    others = {column for column in columns if not ability_of(column)} - OF_TOKENS
    yield from sorted(others | abilities | set(used.part.uses))


def _check_need(
    need: str, used: RecipePart, settings: RunSettings, parts: Sequence[RecipePart], rows: Mapping[str, Entry]
) -> None:
    if need in registry.SINGLE:
        return  # known when the environment is made (palaestra.training.preflight)
    if need == "group":
        if settings.rollout.group < 2:
            raise _no_group(used, rows["rollout.group"])
    elif need == "fork":
        if not _forks(settings.rollout.runner.name):
            runners = [name for name in registry.names("rollout") if _forks(name)]
            fault = f"forks of episodes, and the runner `{settings.rollout.runner.name}` makes none"
            where = rows["rollout.runner"].mark.where
            raise _refusal(used, need, fault, f"set rollout.runner={' or '.join(runners)}", where=where)
    elif need == "reference":
        _check_reference(used, settings)
    elif need in ABILITIES and need in used.part.uses:
        environment = _environment(parts)
        if not _may_have(environment, need):
            fault = f"`{need}` of the environment, and `{environment.name}` has none"
            raise _refusal(used, need, fault, f"give `{environment.name}` the ability `{need}`")
    elif need in used.part.uses or need == "critic":
        _check_ability(need, used, settings, parts)
    elif _is_output(need, used, parts):
        _check_output(need, used, settings, parts)
    else:
        _check_column(need, used, settings, parts)


def _check_reference(used: RecipePart, settings: RunSettings) -> None:
    """Refuse a part if a trained policy that it works with has no reference, neither its own nor the recipe's."""
    trained = {name: policy for name, policy in settings.policies.items() if policy.trainable}
    lacking = [name for name in trained if trained[name].reference is None and name in _policies_of(used, settings)]
    if settings.reference is not None or not lacking:
        return
    fault, way = "`reference` is not set", "set `reference: start` (the weights after the warm start)"
    if any(policy.reference for policy in trained.values()):
        fault = f"policy `{lacking[0]}` has none"
        way = f"set policies.{lacking[0]}.reference=start, or `reference: start`"
    raise _refusal(used, "reference", f"a reference policy, and {fault}", way)


def _check_ability(need: str, used: RecipePart, settings: RunSettings, parts: Sequence[RecipePart]) -> None:
    for policy in (other for other in parts if slot_at(tuple(other.path.split("."))) == "policy"):
        abilities = declared(policy.part.target, "abilities")
        concerned = policy.owner in _policies_of(used, settings)
        if concerned and abilities is not None and need not in abilities(policy.values):
            fault = f"a {need}, and policy `{policy.owner}` (`{policy.name}`) has none"
            options = f"its options are {', '.join(policy.options)}" if policy.options else "it has no options"
            way = f"give policy `{policy.owner}` one, by an option of `{policy.name}` ({options}) or another policy"
            raise _refusal(used, need, fault, way)


def _is_output(need: str, used: RecipePart, parts: Sequence[RecipePart]) -> bool:
    """Whether a policy must give this column: one with a suffix, such as `x_old`, or an output that a loss reads."""
    output, of = output_of(need)
    if of != "policy" or used.part.slot not in ("loss", "regularizer"):
        return of != "policy"
    policies = [part for part in parts if slot_at(tuple(part.path.split("."))) == "policy"]
    return output in ("logprob", *FROM_OUTPUTS.values()) or any(output in _outputs(policy) for policy in policies)


def _outputs(policy: RecipePart) -> frozenset[str]:
    """The outputs that a policy declares; empty, if it declares none."""
    outputs_with = declared(policy.part.target, "outputs_with")
    return frozenset() if outputs_with is None else frozenset(outputs_with(policy.values))


def _check_output(need: str, used: RecipePart, settings: RunSettings, parts: Sequence[RecipePart]) -> None:
    """Refuse a part if a policy that it works with lacks the output. A policy that declares no outputs passes."""
    output = output_of(need)[0]
    for policy in (other for other in parts if slot_at(tuple(other.path.split("."))) == "policy"):
        outputs = _outputs(policy)
        if policy.owner in _policies_of(used, settings) and outputs:
            if output not in outputs:
                fault = f"the column `{need}`, and policy `{policy.owner}` (`{policy.name}`) has no output `{output}`"
                way = f"use a policy that gives it; `{policy.name}` gives {', '.join(sorted(outputs))}"
                raise _refusal(used, need, fault, way, verb="reads")


def _check_column(need: str, used: RecipePart, settings: RunSettings, parts: Sequence[RecipePart]) -> None:
    environment = _environment(parts)
    runner = settings.rollout.runner.part.target
    provided = [declared(target, "provides") for target in (runner, *(other.part.target for other in parts))]
    runners = [name for name in registry.names("rollout") if need in _provides("rollout", name)]
    own = declared(environment.part.target, "provides")
    if own is None or any(need in columns for columns in provided if columns is not None):
        return
    source = {"state_key": "`Observation.state_key`", "outcome": "`success`"}.get(need, f"`{need}` in `info`")
    fault = f"the column `{need}`, and environment `{environment.name}` gives none"
    way = f"give {source} in `{environment.name}` and name `{need}` in its `provides`"
    if need not in ("state_key", "outcome"):
        way += (
            f", or let a part or a policy give it: an estimator names it in `writes=({need!r},)` of its registration, "
        )
        way += "a policy in its `token_outputs`"
    if runners:  # runners give this column, not environments
        fault = f"the column `{need}`, and the runner `{settings.rollout.runner.name}` gives none"
        way = f"set rollout.runner={' or '.join(runners)}"
    raise _refusal(used, need, fault, way, verb="reads")


def _forks(runner: str) -> bool:
    return _declares("rollout", runner, "forks")


def _declares(slot: str, name: str, attribute: str) -> bool:
    return bool(declared(registry.part(slot, name).target, attribute))


def _provides(slot: str, name: str) -> frozenset[str]:
    return frozenset(declared(registry.part(slot, name).target, "provides") or ())


def _policies_of(used: RecipePart, settings: RunSettings) -> set[str]:
    """The policies that a part works with."""
    if used.path.startswith("policies."):
        return {str(used.owner)}
    if used.path.startswith("agents."):
        return {settings.agents[str(used.owner)].policy}
    overridden = used.path in ("optimizer", "loss", "regularizers")
    return {
        name
        for name, policy in settings.policies.items()
        if policy.trainable and not (overridden and getattr(policy, used.path) is not None)
    }


def _environment(parts: Sequence[RecipePart]) -> RecipePart:
    return next(used for used in parts if used.path == "environment")


def _may_have(environment: RecipePart, ability: str) -> bool:
    """Whether the environment has this ability, or may have it.

    Nobody knows yet what a function will make. A class without a list of abilities may set attributes such as
    `vector_size` in its constructor.
    """
    target = environment.part.target
    if not isinstance(target, type) or (ability == "vector" and declared(target, "abilities") is None):
        return True
    return has(target, ability)


# ---- messages ---------------------------------------------------------------------------------------------
def _no_group(used: RecipePart, group: Entry) -> RecipeError:
    blamed = group.mark if used.mark.source == "default" else used.mark
    fault = f"a group of at least 2 trajectories, and `rollout.group` is {group.value} ({group.mark.origin})"
    return _refusal(used, "group", fault, "set rollout.group=2 or more; usual: 8", where=blamed.where)


def _refusal(
    used: RecipePart, need: str, fault: str, way: str, *, verb: str = "uses", where: str | None = None
) -> RecipeError:
    slot = slot_at(tuple(used.path.split("."))) or used.part.slot
    leave = "leave it out, or " if slot in ADDITIVE else ""
    others = f"{leave}use a part that does not need it (`palaestra methods --slot {slot} --without {need}` lists all)"
    return RecipeError(
        where=where or used.mark.where,
        what=f"`{used.name}` {verb} {fault}." + (f"\n  {WHY[need]}" if need in WHY else ""),
        options=_without(slot, need, used),
        remedy=_ways(way, others),
    )


def _ways(*ways: str) -> str:
    return "Do one of these:\n" + ", or\n".join(f"  • {way}" for way in ways) + "."


def _without(slot: str, need: str, used: RecipePart) -> list[str]:
    """The parts of the slot that take the same data and do not need this. Parts that cannot be loaded are left out."""
    found = []
    for name in registry.names(slot):
        try:
            other = registry.part(slot, name)
        except Exception:
            continue
        if (
            other.data == used.part.data
            and need not in other.uses
            and need not in {ability_of(column) or column for column in other.reads or ()}
        ):
            found.append(name)
    return found
