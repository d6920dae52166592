"""Builds a run from its settings: the environment, the policies, the roles, the engine and the runner."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from palaestra.boundary.tasks import tasks_of
from palaestra.chat.readers import Reader
from palaestra.data import Play, RunSetup, StopReason, Task, Trajectory, derive
from palaestra.data.abilities import has, require, sizes_of
from palaestra.data.protocols import Context, Engine, Policy, complete
from palaestra.data.ranks import Ranks
from palaestra.errors import ContractError, RecipeError, nearest, out_of_memory
from palaestra.models.devices import run_device
from palaestra.models.joined import join_weights
from palaestra.models.precision import chosen_dtype, set_dtype
from palaestra.policies.scripted import expert, random
from palaestra.registry import declared
from palaestra.registry.bound import BoundPart
from palaestra.registry.user_objects import shown
from palaestra.rollout.programs import demonstration_of, play, roles_of
from palaestra.rollout.roles import Role, RoleTools, phrases_of
from palaestra.rollout.runner import EpisodeRunner, environment_of
from palaestra.rollout.settings import RolloutSettings
from palaestra.tools import Tool, Toolbox
from palaestra.training.settings import PolicySettings, RoleSettings, RunSettings, ToolSettings

NEUTRAL = {"top_k": 0, "top_p": 1, "temperature": 1}  # with these, all tokens are sampled as the model says
TRANSCRIPTS = 96  # episodes that a tokenizer is trained on


def make_source(settings: RunSettings) -> Any:
    """The environment that gives a run its tasks. Raises: ContractError, if it has none."""
    return require(
        environment_of(settings.environment, shown(settings.environment.name)),
        "tasks",
        where=f"environment: {settings.environment.name}",
        what="it gives no tasks.",
        remedy="Add a method `tasks(split, n, seed) -> list[Task]`, which training calls for its tasks.",
    )


def build_setup(settings: RunSettings, ranks: Ranks | None = None, *, source: Any = None) -> RunSetup:
    """Build the setup of a run.

    Args:
        ranks: the processes that work on the run; None: this one alone.
        source: the environment that gives the tasks, if it is made already.

    Raises: RecipeError, for settings that do not fit each other; ContractError, for an environment, a policy, a context
        or an engine that breaks its protocol.
    """
    device = run_device(settings.device)
    environment = settings.environment
    make = functools.partial(environment.part.target, **environment.options)
    source = make_source(settings) if source is None else source
    vector_size, action_count = sizes_of(source)
    setup = RunSetup(
        seed=derive(settings.seed, "weights") % 2**31,
        device=str(device),
        environment_name=shown(environment.name),
        environment_options=environment.options,
        make_environment=make,
        source=source,
        settings=settings,
        vector_size=vector_size,
        action_count=action_count,
        texts=lambda: [
            *transcripts(settings, make, source),
            *phrases(settings, source),
        ],
    )
    make_policies(settings, setup)
    setup.ranks = ranks or setup.ranks
    setup.engine = connect_engine(setup.policies, setup.device, settings.engine, setup.ranks)
    for policy in setup.policies.values():
        policy.check_numbers()
    setup.program = settings.program
    setup.roles = make_roles(settings, source.agents, setup.policies)
    setup.team = tuple(roles_of(setup.program) or (name for name in settings.agents if name != "*"))
    setup.temperatures = temperatures(settings, source.agents)
    setup.runner = settings.rollout.runner.part.target(setup, settings.rollout)
    if has(source, "expert"):
        setup.demonstrate = functools.partial(demonstrations, setup, settings.seed)
    return setup


def make_policies(settings: RunSettings, setup: RunSetup) -> None:
    """Put all policies of the recipe into the setup, in the recipe's order. An adapter is made after its base.

    Raises: RecipeError, if the base of an adapter does not exist, is an adapter itself, or is trained.
    """
    below = {name: _below(chosen) for name, chosen in settings.policies.items()}
    for name, base in below.items():
        if base is not None:
            _check_base(name, base, below, settings)
    for name in sorted(settings.policies, key=lambda name: below[name] is not None):
        setup.policies[name] = _policy(
            name, settings.policies[name], setup, dtype=chosen_dtype(settings.dtype, settings.device)
        )
    setup.policies = {name: setup.policies[name] for name in settings.policies}


@contextmanager
def _in_memory(where: str) -> Iterator[None]:
    """A context in which something large is made. Raises: RecipeError, if the machine has not the memory for it."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise RecipeError(
            where=where,
            what=f"there is not enough memory for it: {str(error).splitlines()[0] if str(error) else 'out of memory'}.",
            remedy="Make its sizes smaller. `palaestra plan` shows what a pretrained model needs.",
        ) from error


def _below(settings: PolicySettings) -> str | None:
    """The name of the base, if the policy is an adapter."""
    stands_on = declared(settings.policy.part.target, "stands_on")
    return None if stands_on is None else stands_on(settings.policy.options)


def _check_base(name: str, base: str, below: Mapping[str, str | None], settings: RunSettings) -> None:
    """Raises: RecipeError, if this policy cannot be the base of an adapter."""
    kind = settings.policies[name].policy.name
    where, wholes = f"policies.{name}.policy.{kind}.of", [other for other, under in below.items() if under is None]
    if base not in below:
        raise RecipeError(
            where=where,
            what=f"its base is policy `{base}`, which does not exist.",
            options=nearest(base, wholes) or wholes,
            remedy=f"Add the base: `policies: {{{base}: {{policy: …, trainable: false}}}}`.",
        )
    if below[base] is not None:
        raise RecipeError(
            where=where,
            what=f"its base is policy `{base}`, which has the base `{below[base]}` itself.",
            options=wholes,
            remedy=f"Use `{below[base]}` as the base.",
        )
    if settings.policies[base].trainable:
        raise RecipeError(
            where=f"policies.{base}.trainable",
            what=f"it is the base of policy `{name}`, and each of its updates would change what `{name}` does.",
            remedy=f"Set policies.{base}.trainable=false. To train its roles, give them an adapter of their own.",
        )


def _policy(name: str, settings: PolicySettings, setup: RunSetup, *, dtype: str) -> Any:
    options = dict(settings.policy.options)
    if settings.load is not None:
        if "model" not in options:
            raise RecipeError(
                where=f"policies.{name}.load",
                what=f"a policy of the kind `{settings.policy.name}` cannot load a folder.",
            )
        options["model"] = settings.load
    with _in_memory(f"policies.{name}"):
        made = settings.policy.part.target(name, setup, **options)
    policy = complete(made, Policy, where=f"policies.{name}.policy: {settings.policy.name}")
    policy.trainable = policy.trainable and settings.trainable
    if policy.module is not None:  # before adapters use its weights
        set_dtype(policy.module, dtype)
        join_weights(policy.module)
    used = policy.as_trained()
    if used is not policy:
        set_dtype(used.module, dtype)
    return used


def connect_engine(policies: Mapping[str, Any], device: str, engine: BoundPart, ranks: Ranks) -> Engine | None:
    """Make one engine for all policies that generate tokens. Returns None, if there is no such policy.

    Raises: ContractError, for an engine that breaks its protocol; PalaestraError, if several
        processes share an engine that does not answer.
    """
    models = {name: policy.model for name, policy in policies.items() if policy.model is not None}
    if not models:
        return None
    made = engine.part.target(models, device, **engine.options)
    complete(made, Engine, where=f"engine: {engine.name}")
    for name in models:
        policies[name].engine = made
    if ranks.world > 1:
        try:
            made.share(ranks)
        except BaseException:
            made.shutdown()
            raise
    return made


def transcripts(settings: RunSettings, make: Callable[[], Any], source: Any) -> list[str]:
    """Texts for a tokenizer: the observations and actions of expert play, or of random play if there is no expert.

    The environments run in workers, as the recipe says. They call no function of the user that judges or answers.
    """
    seed, environment = settings.seed, settings.environment
    kind, player = ("expert", expert) if has(source, "expert") else ("random", random)
    setup = RunSetup(
        seed=seed,
        environment_name=shown(environment.name),
        environment_options=environment.options,
        make_environment=functools.partial(unjudged, make),
        source=source,
        action_count=sizes_of(source)[1],
        program=play,
    )
    setup.roles = {"*": Role(policy=player(kind, setup))}
    tasks: list[Task] = tasks_of(source, "train", TRANSCRIPTS, derive(seed, "transcripts"))
    plays = [Play(task=t, group="transcripts", sample=i, seed=derive(seed, i)) for i, t in enumerate(tasks)]
    texts: list[str] = []
    workers = settings.rollout.model_dump(include={"workers", "worker_kind", "step_seconds", "in_flight"})
    runner = EpisodeRunner(setup, RolloutSettings(max_turns=64, **workers))
    try:
        played = runner.collect(plays)
    finally:
        runner.close()
    for trajectory in played:
        for step in trajectory.steps:
            texts += [step.observation.text or "", step.action.text or ""]
            texts += [str(choice) for choice in step.observation.legal or ()]
    return [text for text in texts if text]


def unjudged(make: Callable[[], Any]) -> Any:
    """A new environment that calls no function of the user."""
    environment = make()
    if has(environment, "judging"):
        environment.judging = False
    return environment


def demonstrations(setup: RunSetup, seed: int, tasks: Sequence[Task]) -> list[Trajectory]:
    """Episodes of the environment's expert on these tasks. Sessions of the run's policies record each act."""
    plays = [
        Play(task=task, group=f"expert-{task.content_hash}", sample=0, seed=derive(seed, "expert", task.content_hash))
        for task in tasks
    ]
    program = functools.partial(demonstration_of(setup.program), noise=0.0)
    return [played for played in setup.runner.collect(plays, program=program) if played.stop is not StopReason.ERROR]


def phrases(settings: RunSettings, source: Any) -> list[str]:
    """Texts for a tokenizer: all that a policy reads beside observations.

    They come from the environment's teacher, contexts, strategies and tools.
    """
    texts: list[str] = [*source.phrases] if has(source, "phrases") else []
    for role in settings.agents.values():
        texts += role.context().phrases
    for strategy in settings.strategy:
        texts += strategy.started().can("phrases") or ()
    return texts + phrases_of([tool.name for role in settings.agents.values() for tool in role.tools.use])


# ---- roles ----------------------------------------------------------------------------------------------
def make_roles(settings: RunSettings, agents: Sequence[str], policies: Mapping[str, Any]) -> dict[str, Role]:
    """A role for every name that may act, and one for "*" if its policy exists.

    Args:
        agents: of the environment.

    Raises: RecipeError, as `check_roles`.
    """
    check_roles(settings, agents)
    chosen = {name: settings.role(name) for name in roles_in(settings, agents)}
    return {name: _role(role, policies[role.policy]) for name, role in chosen.items() if role.policy in policies}


def roles_in(settings: RunSettings, agents: Sequence[str]) -> tuple[str, ...]:
    """The names that may act in an environment with these agents, and "*"."""
    return tuple(dict.fromkeys((*_acting(settings, agents), *settings.agents, *agents, "*")))


def check_roles(settings: RunSettings, agents: Sequence[str]) -> None:
    """Refuse a role without a policy, a role that never acts, a policy that nobody plays, and one that is trained at
    several temperatures.

    Args:
        agents: of the environment.

    Raises: RecipeError.
    """
    acting = _acting(settings, agents)
    _refuse_unknown(settings, acting, agents)
    _refuse_unknown_agents(settings, agents)
    for name in dict.fromkeys((*acting, *settings.agents)):
        policy = settings.role(name).policy
        if policy not in settings.policies:
            raise RecipeError(
                where=f"agents.{name}.policy",
                what=f"there is no policy `{policy}`.",
                options=sorted(settings.policies),
                remedy=f"Write `agents: {{{name}: {{policy: …}}}}`.",
            )
    used = {settings.role(name).policy for name in acting}
    used |= {base for policy in settings.policies.values() if (base := _below(policy)) is not None}
    for name in settings.policies:
        if name not in used:
            raise RecipeError(
                where=f"policies.{name}",
                what="it plays no role.",
                options=[f"agents.{role}.policy={name}" for role in acting],
                remedy="Give the policy a role, or leave it out.",
            )
    temperatures(settings, agents)


def _acting(settings: RunSettings, agents: Sequence[str]) -> tuple[str, ...]:
    """The roles that act: those that the program declares, else the environment's agents.

    If the program declares nothing, any name in the recipe may be a role.
    """
    roles = roles_of(settings.program)
    if roles is None:
        return tuple(dict.fromkeys((*agents, *(name for name in settings.agents if name != "*"))))
    return tuple(roles or agents)


def _role(chosen: RoleSettings, policy: Any) -> Role:
    return Role(
        policy=policy,
        context=complete(chosen.context(), Context, where=f"context: {chosen.context.name}"),
        frozen=chosen.frozen,
        prompt=chosen.prompt,
        instruction=chosen.instruction,
        reader=complete(chosen.reader(), Reader, where=f"reader: {chosen.reader.name}"),
        parser=chosen.parser,
        tools=_tools(chosen.tools),
        acts_for=chosen.acts_for,
        sampling=chosen.sampling,
    )


def _tools(chosen: ToolSettings) -> RoleTools | None:
    """The tools of a role, made once for all its episodes. Raises: ContractError, if two have the same name."""
    if not chosen.use and not chosen.native:
        return None
    options = chosen.model_dump(exclude={"use"})
    tools = RoleTools(tools=tuple(_tool(part) for part in chosen.use), **options)
    Toolbox(tools.tools)  # refuses two tools of the same name
    return tools


def _tool(chosen: BoundPart) -> Tool:
    """The tool that a part is, or that its function makes. Raises: ContractError, for anything else."""
    target = chosen.part.target
    made = chosen() if callable(target) and not chosen.part.data else target
    if isinstance(made, Tool):
        return made
    raise ContractError(
        where=f"tool {chosen.name}",
        what=f"it must be a tool, or a function of options that gives one, and it is of type {type(made).__name__}.",
        remedy="Write `@tool` of palaestra.tools above the function.",
    )


def refuse_other_probabilities(settings: RunSettings, recipe: Mapping[str, Any]) -> None:
    """Refuse sampling from another distribution than the one whose log-probabilities training computes.

    Training divides the logits by the temperature and computes the softmax over all tokens. `top_k` and `top_p` sample
    from a part of them, and temperature 0 takes one. Evaluations, frozen roles, and policies that are not trained or
    have no log-probabilities may do so.

    Args:
        recipe: the resolved recipe with origins, which says where a value was written.

    Raises: RecipeError.
    """
    for role, chosen in ({"*": settings.role("*")} | settings.agents).items():
        policy = settings.policies.get(chosen.policy)
        if policy is None or chosen.frozen or not policy.trainable or not _has_logprob(policy):
            continue
        for name, neutral in NEUTRAL.items():
            own = getattr(chosen, name)
            key = f"rollout.{name}" if own is None else f"agents.{role}.{name}"
            value = getattr(settings.rollout, name) if own is None else own
            if value != neutral and (name != "temperature" or value == 0):
                raise RecipeError(
                    where=f"{recipe[key]['origin']}  {key}: {value:g}" if key in recipe else key,
                    what=f"policy `{chosen.policy}` is trained, with the log-probabilities of all tokens. This samples "
                    f"{'from a part of them' if value else 'the likeliest token alone'}.",
                    remedy=f"Set {key}={neutral}. Evaluations, roles with `frozen: true` and policies with "
                    "`trainable: false` may sample in any way.",
                )


def _has_logprob(settings: PolicySettings) -> bool:
    """Whether the policy declares the output `logprob`."""
    outputs_with = declared(settings.policy.part.target, "outputs_with")
    return outputs_with is not None and "logprob" in outputs_with(settings.policy.options)


def temperatures(settings: RunSettings, agents: Sequence[str]) -> dict[str, float]:
    """Name of each policy → the temperature of its roles. Frozen roles and roles that never act do not count.

    Args:
        agents: of the environment.

    Raises: RecipeError, if the roles of a trained policy have different temperatures, since training computes the
        policy's probabilities at one temperature.
    """
    by_policy: dict[str, dict[float, str]] = defaultdict(dict)
    acting = roles_of(settings.program) or dict.fromkeys((*agents, *(name for name in settings.agents if name != "*")))
    for name in acting:
        role = settings.role(name)
        if not role.frozen:
            temperature = role.sampling.get("temperature", settings.rollout.temperature)
            by_policy[role.policy].setdefault(temperature, name)
    for policy, chosen in by_policy.items():
        if len(chosen) > 1 and settings.policies[policy].trainable:
            said = ", ".join(f"{name} {temperature:g}" for temperature, name in chosen.items())
            raise RecipeError(
                where=f"policies.{policy}",
                what=f"its roles have different temperatures ({said}), and training computes the policy's "
                "probabilities at one.",
                remedy="Give them the same `temperature`, or different policies.",
            )
    return {policy: next(iter(chosen)) for policy, chosen in by_policy.items()}


def _refuse_unknown(settings: RunSettings, acting: Sequence[str], agents: Sequence[str]) -> None:
    for name in settings.agents:
        if name != "*" and name not in acting and name not in agents:
            raise RecipeError(
                where=f"agents.{name}",
                what=f"no role of this name acts with program `{settings.program.name}` in environment "
                f"`{settings.environment.name}`.",
                options=nearest(name, list(acting)) or list(acting),
                remedy=f"The roles that act are: {', '.join(acting)}.",
            )


def _refuse_unknown_agents(settings: RunSettings, agents: Sequence[str]) -> None:
    for name, chosen in settings.agents.items():
        if chosen.acts_for is not None and chosen.acts_for not in agents:
            raise RecipeError(
                where=f"agents.{name}.acts_for",
                what=f"environment `{settings.environment.name}` has no agent `{chosen.acts_for}`.",
                options=nearest(chosen.acts_for, agents),
                remedy="Name the agent that this role acts for. Leave the key out if the environment has one agent.",
            )
