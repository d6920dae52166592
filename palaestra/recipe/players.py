"""Puts other policies into a recipe, for `eval` and `play`: a scripted one, a model, an adapter, or an endpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from palaestra.endpoints import Style, endpoint_from
from palaestra.endpoints.clients import VARIABLES
from palaestra.errors import CheckpointError, EpisodeFailure, RecipeError, UnknownName, nearest
from palaestra.models.pretrained import located
from palaestra.registry import names
from palaestra.registry.bound import BoundPart, bind
from palaestra.rollout.programs import roles_of
from palaestra.store.folder import RECIPE
from palaestra.training.settings import PolicySettings, RoleSettings, RunSettings, default_role

ADDRESS, NO_KEY = "PALAESTRA_ENDPOINT", "PALAESTRA_NO_KEY"  # environment variables
OWN: dict[Style, str] = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com/v1"}
SCRIPTED = ("expert", "human", "random")
KEPT = ("packing", "pictures", "attention")  # options of `language` that another model keeps
FILES = {"adapter_config.json": "adapter", "network.json": "network", "config.json": "model", RECIPE: "run"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """What plays in place of policies of the recipe.

    Attributes:
        kind: "scripted", "endpoint", "run", "adapter", "network" or "model".
        what: the name of a policy, an address, or a folder or name of a model.
        stands_for: the policy of the recipe that it replaces. None: for a scripted one, all policies; for others, those
            that the recipe trains.
    """

    kind: str
    what: str
    stands_for: str | None = None

    def __str__(self) -> str:
        if self.kind != "endpoint":
            return self.what
        parts = urlsplit(self.what)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # without a password


def player_of(text: str) -> Player:
    """The player that `--policy` names: `WHAT` or `NAME=WHAT`.

    >>> player_of("main=random")
    Player(kind='scripted', what='random', stands_for='main')
    >>> player_of("http://127.0.0.1:8000").what
    'http://127.0.0.1:8000/v1'

    Raises: RecipeError, for an address that is none; UnknownName or CheckpointError, if nothing has this name.
    """
    named = re.match(r"([\w.-]+)=(.+)", text, re.DOTALL)
    stands_for, what = (named[1], named[2]) if named else (None, text)
    if "://" in what:
        return Player(kind="endpoint", what=_address(what), stands_for=stands_for)
    if what in SCRIPTED:
        return Player(kind="scripted", what=what, stands_for=stands_for)
    for file, kind in FILES.items():
        if (Path(what) / file).is_file():
            return Player(kind=kind, what=what, stands_for=stands_for)
    try:
        return Player(kind="model", what=located(what), stands_for=stands_for)
    except CheckpointError:
        if what in names("policy"):
            return Player(kind="scripted", what=what, stands_for=stands_for)
        if not re.search(r"[/\\]|\d", what) and not Path(what).exists():
            raise UnknownName(
                where=f"--policy {text}",
                what=f"no policy is called `{what}`.",
                options=nearest(what, SCRIPTED),
                remedy="Give one of these, a model folder or the name of a model, a run folder, or an address.",
            ) from None
        raise


def _address(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RecipeError(
            where="--policy", what="the address is not one of a server.", remedy="Write http://127.0.0.1:8000/v1, say."
        )
    return parts._replace(path=parts.path.rstrip("/") or "/v1").geturl()


def with_players(
    settings: RunSettings,
    players: Sequence[Player],
    *,
    model: str | None = None,
    key: str | None = None,
    style: str = "openai",
) -> RunSettings:
    """The settings with these players.

    Args:
        model: the name of the model at an endpoint; None: the only one that the endpoint has.
        key: the environment variable with the key of an endpoint. None: OPENAI_API_KEY for the address in
            OPENAI_BASE_URL and for OpenAI's own; no key for others. With the style `anthropic`, ANTHROPIC_API_KEY for
            the address in ANTHROPIC_BASE_URL and for Anthropic's own.
        style: the protocol of an endpoint: `openai` or `anthropic`.

    Raises: RecipeError, for a player that replaces no policy, or an endpoint that has no such model; UnknownName.
    """
    if style not in OWN:
        raise UnknownName(where=f"--style {style}", what="no protocol of an endpoint has this name.", options=list(OWN))
    protocol: Style = "anthropic" if style == "anthropic" else "openai"
    for player in players:
        if player.kind == "scripted" and player.stands_for is None:
            settings = scripted(settings, player.what)
            continue
        for name in replaced(settings, player):
            settings = _replace(settings, name, player, _Access(model=model, key=key, style=protocol))
    return settings


def scripted(settings: RunSettings, policy: str) -> RunSettings:
    """The settings with every agent of the environment played by a scripted policy.

    A team's program is replaced by `play`, because a scripted policy can play only the agents of the environment.
    """
    player = PolicySettings(policy=bind("policy", BoundPart(name=policy)), trainable=False)
    changed: dict[str, Any] = {"policies": {policy: player}, "agents": {"*": default_role(policy)}}
    if roles_of(settings.program) != ():
        changed["program"] = bind("program", BoundPart(name="play"))
    return settings.model_copy(update={**changed, "reference": None})


def replaced(settings: RunSettings, player: Player) -> list[str]:
    """The names of the policies that the player replaces. Raises: RecipeError or UnknownName, if that is not clear."""
    if player.stands_for is not None:
        if player.stands_for not in settings.policies:
            raise UnknownName(
                where=f"--policy {player.stands_for}={player}",
                what=f"the recipe has no policy `{player.stands_for}`.",
                options=nearest(player.stands_for, settings.policies) or sorted(settings.policies),
                remedy="Name a policy of the recipe, or leave the name out to replace all that it trains.",
            )
        return [player.stands_for]
    trained = [name for name, policy in settings.policies.items() if policy.trainable]
    acting = {role.policy for role in (settings.agents or {"*": default_role()}).values()}
    found = trained or [name for name in settings.policies if name in acting]
    if len(found) > 1 and player.kind in ("adapter", "run"):
        raise RecipeError(
            where=f"--policy {player}",
            what=f"the recipe trains {len(found)} policies, and it is not said which of them it replaces.",
            options=[f"--policy {name}={player}" for name in found],
            remedy="Name the policy, as in the candidates.",
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Access:
    """How an endpoint is asked: arguments of `with_players`."""

    model: str | None
    key: str | None
    style: Style


def _replace(settings: RunSettings, name: str, player: Player, access: _Access) -> RunSettings:
    policies, agents = dict(settings.policies), settings.agents
    former = policies[name].policy
    if player.kind == "adapter" and former.name == "adapter":
        policies[name] = _frozen("adapter", of=former.options["of"], model=player.what)
    elif player.kind == "adapter":
        # Its base keeps the name of the policy, on which the weights of a model that is made on the spot depend.
        own = f"{name}.adapter"
        options = {option: value for option, value in former.options.items() if option not in ("lora", "value_head")}
        base = bind("policy", BoundPart(name=former.name, options=options))
        policies[name] = policies[name].model_copy(update={"policy": base, "trainable": False})
        policies[own] = _frozen("adapter", of=name, model=player.what)
        agents = _played_by(settings, name, own)
    elif player.kind == "endpoint":
        policies[name] = _frozen("endpoint", **_endpoint(player, name, access))
        agents = _instructed(settings, name)
    elif player.kind == "scripted":
        policies[name] = _frozen(player.what)
    elif player.kind == "network":
        policies[name] = _frozen("network", model=player.what)
    else:
        kept = {option: former.options[option] for option in KEPT if option in former.options}
        policies[name] = _frozen("language", model=player.what, **(kept if former.name == "language" else {}))
        unneeded = former.options.get("of") if former.name == "adapter" else None
        if unneeded is not None and not _in_use(unneeded, policies, settings):
            del policies[unneeded]
    return settings.model_copy(update={"policies": policies, "agents": agents, "reference": None})


def _in_use(name: str, policies: Mapping[str, PolicySettings], settings: RunSettings) -> bool:
    """Whether a role has this policy, or an adapter stands on it."""
    roles = {role.policy for role in settings.agents.values()}
    return name in roles or any(policy.policy.options.get("of") == name for policy in policies.values())


def _frozen(kind: str, **options: Any) -> PolicySettings:
    return PolicySettings(policy=bind("policy", BoundPart(name=kind, options=options)), trainable=False)


def _played_by(settings: RunSettings, former: str, now: str) -> dict[str, RoleSettings]:
    """The roles, those of policy `former` with policy `now`."""
    roles = dict(settings.agents) if "*" in settings.agents else {**settings.agents, "*": default_role()}
    return {
        name: role.model_copy(update={"policy": now}) if role.policy == former else role for name, role in roles.items()
    }


def _instructed(settings: RunSettings, policy: str) -> dict[str, RoleSettings]:
    """The roles, those of this policy with the environment's instruction, as a model with a chat template has it."""
    roles = dict(settings.agents) if "*" in settings.agents else {**settings.agents, "*": default_role()}
    return {
        name: role.model_copy(update={"instruction": "environment"})
        if role.policy == policy and role.instruction is None
        else role
        for name, role in roles.items()
    }


def _endpoint(player: Player, name: str, access: _Access) -> dict[str, Any]:
    """The options of an endpoint. Its address goes into an environment variable, since no recipe holds one."""
    key, (own_address, own_key) = access.key, VARIABLES[access.style]
    if key is not None and not os.environ.get(key):
        raise RecipeError(
            where=f"--key {key}",
            what=f"the environment variable {key} is empty.",
            remedy=f"Set it before: export {key}=…. A key is never an argument.",
        )
    usual = urlsplit(os.environ.get(own_address) or OWN[access.style]).netloc
    chosen = key or (own_key if urlsplit(player.what).netloc == usual else NO_KEY)  # a key goes to its own server alone
    variable = f"{ADDRESS}_{name}"
    os.environ[variable] = player.what
    model = access.model or _only_model(variable, chosen, access.style)
    return {"url": variable, "key": chosen, "style": access.style, "model": model}


def _only_model(variable: str, key: str, style: Style) -> str:
    """The model of an endpoint that has one. Raises: RecipeError, if it has several or gives no list."""
    where = "--policy, an endpoint without --model"
    endpoint = endpoint_from(variable, key, timeout_s=20.0, retries=0, where=where, style=style)
    try:
        with endpoint.failures(boundary="engine", where=where, what="the endpoint does not list its models"):
            known = [one.id for one in endpoint.client().models.list()]
    except EpisodeFailure as error:
        raise RecipeError(
            where=where,
            what=error.what,
            remedy="Check the address, and that the server is up. Or give the name of the model with --model.",
        ) from None
    if len(known) != 1:
        raise RecipeError(
            where=where,
            what=f"the endpoint has {len(known)} models.",
            options=known[:12],
            remedy="Give the name of one with --model.",
        )
    return str(known[0])
