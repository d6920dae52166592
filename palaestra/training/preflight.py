"""Makes the parts of a run that are quick to make, and refuses what cannot run, before anything starts.

`explain`, `plan` and `train` make this check, so that a fault has the same error in all three. What the declarations of
parts alone can say is checked when a recipe is loaded (`palaestra.recipe.feasibility`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from palaestra.chat.readers import Reader
from palaestra.data import Iteration, RunSetup, StepTable, TokenBatch
from palaestra.data.abilities import ABILITIES, has, sizes_of
from palaestra.data.protocols import Context, complete
from palaestra.data.tokens import IDS
from palaestra.errors import PalaestraError, RecipeError, described, ends_run
from palaestra.registry import declared
from palaestra.registry.bound import BoundPart
from palaestra.registry.column_names import KEYS
from palaestra.registry.signatures import is_unread, leave_unread, reads_only
from palaestra.registry.trust import code_in
from palaestra.rollout.programs import roles_of
from palaestra.training.async_collector import refuse_strategies
from palaestra.training.policy_gradient import make_optimizer
from palaestra.training.settings import PART_SLOTS, PolicySettings, RoleSettings, RunSettings
from palaestra.training.setup import check_roles, make_policies, make_source, refuse_other_probabilities
from palaestra.training.stages import Stages, refuse_missing_columns, stages_of

SMALL = 2**24  # weights of a policy that the check makes, without a factor
Made = Any  # an object of a part
Entries = Mapping[str, Mapping[str, Any]]  # the resolved recipe with origins, as `Recipe.to_json` gives it


class Checked(NamedTuple):
    """What the check has made and what it says.

    Attributes:
        source: the environment, which the run may use; None, if it was left out.
        notes: lines for the user, on what is given and not used, and on what cannot be known.
    """

    source: Any
    notes: tuple[str, ...]


def check_start(settings: RunSettings, recipe: Entries) -> Checked:
    """Refuse a recipe whose parts cannot be made or do not fit each other.

    While code of the user is not imported, parts that need it are left out.

    Args:
        recipe: the resolved recipe with origins, which says where a value was written.

    Raises: PalaestraError, as the parts do; RecipeError.
    """
    refuse_other_probabilities(settings, recipe)
    if settings.training.max_staleness:
        refuse_strategies(settings)
    for name, chosen in ({"*": settings.role("*")} | settings.agents).items():
        _check_role(name, chosen, recipe)
        _check_native(name, chosen, settings)
    parts = dict(_parts(settings))
    for key, part in parts.items():
        if part.part.holds_state:
            _make(part, key.partition("#")[0], recipe, part.started)
    source = _make(settings.environment, "environment", recipe, lambda: make_source(settings))
    if source is None:
        return Checked(None, ())
    check_roles(settings, source.agents)
    notes = [*source.notes] if has(source, "notes") else []
    whole = not any(is_unread(part.part.target) for part in parts.values())
    for key, part in parts.items():
        where = place(recipe, key.partition("#")[0], part.name)
        _check_needs(part, where, settings, source)
        if whole and (fits := declared(part.part.target, "fits")) is not None:
            with _shown_at(where, head=f"{part.part.slot}: {part.name}"):
                notes += fits(part.options, settings, source) or ()
    if whole:
        stages = stages_of(settings, source, learners=settings.learner, trained=_trained(settings))
        notes += _check_columns(stages, settings, source)
        with torch.random.fork_rng(devices=[]):  # a run draws as if nothing had been tried
            _try_options(stages, settings, source)
            _try_policies(settings, source)
    return Checked(source, tuple(notes))


def _trained(settings: RunSettings) -> dict[str, BoundPart]:
    """The policies that learn, by name."""
    return {name: chosen.policy for name, chosen in settings.policies.items() if chosen.trainable}


def _check_columns(stages: Stages, settings: RunSettings, source: Any) -> list[str]:
    """Refuse a part that reads a column which nothing gives. Returns lines, as `refuse_missing_columns`."""
    outputs: set[str] = set()
    for name, policy in _trained(settings).items():
        outputs_with = declared(policy.part.target, "outputs_with")
        # A policy that does not declare its outputs may give whatever its loss reads.
        read = (column for part in stages.updates[name] for column in part.reads or ())
        outputs.update(read if outputs_with is None else outputs_with(policy.options))
    return refuse_missing_columns(stages, settings.environment, source, outputs=outputs)


def _parts(settings: RunSettings) -> Iterator[tuple[str, BoundPart]]:
    """The bound parts of the run, each with its key. Several at one place have `#` and a number behind it."""
    for path in PART_SLOTS:
        for key, value in _at(settings, path.split(".")):
            many = isinstance(value, list)
            for number, part in enumerate(value if many else [value]):
                if part is not None:
                    yield f"{key}#{number}" if many else key, part


def _at(value: Any, path: Sequence[str], key: str = "") -> Iterator[tuple[str, Any]]:
    """The values at a path, in which `*` stands for every name, each with its key."""
    if not path or value is None:
        yield key, value
    elif path[0] == "*":
        for name, inner in value.items():
            yield from _at(inner, path[1:], f"{key}.{name}")
    else:
        yield from _at(getattr(value, path[0]), path[1:], f"{key}.{path[0]}".lstrip("."))


def _check_needs(part: BoundPart, where: str, settings: RunSettings, source: Any) -> None:
    """Refuse a part that names something in `uses` which the environment lacks, now that it is made."""
    fault, world = "", f"`{settings.environment.name}`"
    for need in part.part.uses:
        if need == "one_agent" and len(source.agents) > 1:
            fault = f"needs an environment with one agent, and {world} has {len(source.agents)}"
        elif need == "one_act" and not declared(source, need):
            fault = f"needs episodes that end with the first act, and {world} does not declare `one_act`"
        elif need in ABILITIES and not has(source, need):
            fault = f"uses `{need}` of the environment, and {world} has none with these options"
        if fault:
            raise RecipeError(
                where=where,
                what=f"`{part.name}` {fault}.",
                remedy=f"Use another environment, or a part that does not need it (`palaestra methods --slot "
                f"{part.part.slot} --without {need}` lists all).",
            )


# ---- trials -----------------------------------------------------------------------------------------------
def _try_options(stages: Stages, settings: RunSettings, source: Any) -> None:
    """Call the functions of the library on a few rows, so that they refuse options that do not fit each other.

    They check their options when they are called. What else they say of these rows does not matter. Functions of the
    user are not called: they may cost something. Nor is any, if the roles that act are unknown.
    """
    roles = roles_of(settings.program)
    if roles is None:
        return
    table, tokens = _few_rows(tuple(roles or source.agents)), _few_tokens()
    for part in stages.running:
        target = part.part.target
        if part.part.holds_state or not getattr(target, "__module__", "").startswith("palaestra."):
            continue
        lacking = [name for name in part.reads or () if not name.endswith("?")]
        if part.part.slot in ("loss", "regularizer"):
            absent = [name for name in lacking if name not in tokens and name not in IDS]
            data: list[Any] = [tokens.replace(**dict.fromkeys(absent, tokens["counts"]))]
        else:
            absent = [name for name in lacking if name not in table]
            filled = {name: ["a"] * len(table) if name in KEYS else [0.0] * len(table) for name in absent}
            data = [table.replace(**filled), torch.zeros(len(table))]
        count = sum(name != "iteration" for name in part.part.data)
        try:
            part.at(Iteration())(*data[:count])
        except RecipeError:
            raise
        except Exception as error:
            if ends_run(error):
                raise


def _few_rows(agents: Sequence[str]) -> StepTable:
    """Two groups of two trajectories, in which each of these agents acts once. Each act is one token."""
    rows = [(group, number, turn, agent) for group in "ab" for number in "01" for turn, agent in enumerate(agents)]
    ones = [1.0] * len(rows)
    return StepTable(
        group=[group for group, *_ in rows],
        trajectory=[group + number for group, number, *_ in rows],
        agent=[agent for *_, agent in rows],
        turn=[turn for _, _, turn, _ in rows],
        reward=[0.0] * len(rows),
        outcome=[float(number) for _, number, *_ in rows],
        terminated=[turn == len(agents) - 1 for _, _, turn, _ in rows],
        truncated=[False] * len(rows),
        invocation=[0] * len(rows),
        **dict.fromkeys(("logprob_old", "logprob_behavior", "logprob_reference", "entropy_old", "value_old"), ones),
    )


def _few_tokens() -> TokenBatch:
    """Two groups of two trajectories of one token."""
    number, ones = torch.arange(4), torch.ones(4)
    columns: dict[str, Any] = dict.fromkeys(("logprob", "logprob_old", "advantage", "weight", "counts"), ones)
    return TokenBatch(row=number, trajectory=number, group=number // 2, agent=number % 2, scope="minibatch", **columns)


def _try_policies(settings: RunSettings, source: Any) -> None:
    """Make the policies that load no model, and the optimizers of those that learn, which may refuse their options."""
    quick = {name: chosen for name, chosen in settings.policies.items() if _is_quick(chosen, settings)}
    vector_size, action_count = sizes_of(source)
    setup = RunSetup(
        environment_name=settings.environment.name,
        source=source,
        settings=settings,
        vector_size=vector_size,
        action_count=action_count,
        texts=lambda: (),
    )
    make_policies(settings.model_copy(update={"policies": quick}), setup)
    for name, policy in setup.trained.items():
        if policy.module is not None and any(declared(one.part.target, "runs") for one in settings.learner):
            make_optimizer(settings.policies[name].optimizer or settings.optimizer, policy.module)


def _is_quick(chosen: PolicySettings, settings: RunSettings) -> bool:
    """Whether a policy is made here in a moment: it is one of the library's, loads no folder and is small."""
    options, target = chosen.policy.options, chosen.policy.part.target
    if (
        not getattr(target, "__module__", "").startswith("palaestra.")
        or chosen.load
        or options.get("model") is not None
    ):
        return False
    if (stands_on := declared(target, "stands_on")) is not None:
        base = settings.policies.get(stands_on(options))
        return base is not None and declared(base.policy.part.target, "stands_on") is None and _is_quick(base, settings)
    widths = options.get("hidden", 0)
    widest = max(widths, default=0) if isinstance(widths, list | tuple) else widths
    return declared(target, "outputs_with") is not None and widest * widest * options.get("layers", 1) <= SMALL


@contextmanager
def _shown_at(where: str, *, head: str) -> Iterator[None]:
    """A context whose errors name this place, in place of the `head` of their own. What follows the head stays."""
    try:
        yield
    except PalaestraError as error:
        rest = error.where.removeprefix(head) if error.where.startswith(head) else f", {error.where}"
        rest = "" if error.where.endswith(f".{head}") else rest  # the same place, in general terms
        raise type(error)(where=where + rest, what=error.what, options=error.options, remedy=error.remedy) from None


def _check_role(name: str, chosen: RoleSettings, recipe: Entries) -> None:
    """Refuse a role whose context or reader cannot be made, or whose context cannot declare its tools."""
    key = f"agents.{name}"
    reader, context = (
        _make(part, f"{key}.{slot}", recipe, part)
        for slot, part in (("reader", chosen.reader), ("context", chosen.context))
    )
    if reader is not None:
        complete(reader, Reader, where=f"reader: {chosen.reader.name}")
    if context is None:
        return
    complete(context, Context, where=f"context: {chosen.context.name}")
    if chosen.tools.native and not declared(context, "keeps_messages"):
        raise RecipeError(
            where=place(recipe, f"{key}.context", chosen.context.name),
            what=f"role `{name}` has `tools.native`, and the context `{chosen.context.name}` puts turns together "
            "itself, so the chat template cannot declare tools.",
            options=["full_history", "window", "latest_only"],
            remedy=f"Use one of these contexts, or leave out {key}.tools.native and describe the calls in words "
            "(`tools.format`). A context of your own that gives `Dialogue` its turns declares `keeps_messages = True`.",
        )


def _check_native(role: str, chosen: RoleSettings, settings: RunSettings) -> None:
    """Refuse native tools of a role whose policy has no chat template that could declare them."""
    policy = settings.policies.get(chosen.policy)
    if policy is None or not chosen.tools.native:
        return
    stands_on = declared(policy.policy.part.target, "stands_on")
    base = policy if stands_on is None else settings.policies.get(stands_on(policy.policy.options), policy)
    no_template = declared(base.policy.part.target, "no_template")
    options = base.policy.options if base.load is None else {**base.policy.options, "model": base.load}
    fault = None if no_template is None else no_template(options)
    if fault is not None:
        raise RecipeError(
            where=f"agents.{role}.tools.native",
            what=f"the chat template of a policy declares native tools, and policy `{chosen.policy}` {fault}.",
            remedy="Use a policy with an instruction-tuned model, or leave `native` out and describe the calls in "
            "words (`tools.format`).",
        )


def place(recipe: Entries, key: str, value: Any) -> str:
    """Where a value was written, as an error shows it."""
    written = f"{key}: {value}"
    return f"{recipe[key]['origin']}  {written}" if key in recipe else written


def _make(part: BoundPart, key: str, recipe: Entries, make: Callable[[], Made]) -> Made:
    """What `make` makes; None, if this needs code of the user that must not be imported now."""
    if reads_only():
        if is_unread(part.part.target):
            return None
        for option, text, _ in code_in({name: {"value": value} for name, value in part.options.items()}):
            leave_unread(text, f"`{part.name}` has it as its option `{option}` and is not made")
            return None
    try:
        return make()
    except PalaestraError:
        raise
    except Exception as error:
        if ends_run(error) or part.file:  # the command line shows the line of the user's file
            raise
        what = f"`{part.name}` cannot be made with these options: {described(error)}."
        raise RecipeError(where=place(recipe, key, part.name), what=what, remedy="Change its options.") from error
