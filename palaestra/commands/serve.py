"""`palaestra serve` starts the gateway with the policies of a run, or with a model folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palaestra.commands.runs import recipe_of, trained_setup
from palaestra.data import RunSetup
from palaestra.engines import InProcessEngine
from palaestra.errors import CheckpointError, RecipeError, UnknownName, nearest
from palaestra.gateway.app import Single, make_app
from palaestra.gateway.limits import ServerLimits
from palaestra.gateway.models import ServedModel, ServedModels
from palaestra.gateway.server import TOKEN, refuse_missing, rules_of
from palaestra.http.addresses import address_of, bound, secret_in
from palaestra.http.asgi import serve_until_signal
from palaestra.models.adapters import CONFIG
from palaestra.models.devices import run_device
from palaestra.models.joined import join_weights
from palaestra.models.precision import chosen_dtype, set_dtype
from palaestra.models.pretrained import description
from palaestra.policies.adapter import AdapterPolicy
from palaestra.policies.agreement import refuse_disagreement
from palaestra.policies.language import LanguagePolicy
from palaestra.store.folder import RECIPE, RunFolder


def run(
    *,
    model: str,
    host: str,
    port: int,
    policy: str | None,
    checkpoint: int | None,
    base: str | None,
    name: str | None,
    device: str,
    dtype: str,
    memory: str | None,
    max_length: int | None,
    max_tokens: int,
    limits: Mapping[str, Any],
) -> None:
    """Serve until a signal comes. The first line of the output has the address.

    Args:
        model: a run folder, a model folder, the name of a model, or a folder of an adapter.
        policy: of a run; None: all that write tokens. checkpoint: of a run; None: the newest.
        base: the model below an adapter; None: as the adapter's folder says.
        name: of the model in requests; None: that of the policy or the folder.
        memory: most memory of keys and values. max_length: most ids of a chat; None: the model's context.
        max_tokens: of a reply whose request names no limit.
        limits: of the server, as `ServerLimits` has them.

    Raises: PalaestraError, for anything that cannot be served.
    """
    refuse_missing()
    secret, allowed = secret_in(TOKEN), ServerLimits(**limits)
    listening = bound(host, port, secret=secret, variable=TOKEN)
    with listening:
        policies = _policies(model, policy, checkpoint, base, device, dtype)
        if name is not None and len(policies) > 1:
            raise UnknownName(
                where=f"palaestra serve {model} --name {name}",
                what=f"the run has {len(policies)} policies that write tokens, and a name is for one.",
                options=sorted(policies),
                remedy="Choose one with --policy.",
            )
        served = _served(policies, memory=memory, max_length=max_length, max_tokens=max_tokens)
        if name is not None:
            served = {name: next(iter(served.values()))}
        backend = ServedModels(served)
        app = make_app(Single(backend), limits=allowed)
        line = f"serving {', '.join(served)} at {address_of(listening)}/v1 (Ctrl-C ends it)"
        try:
            serve_until_signal(app, rules_of(allowed, secret=secret), listening, ready=lambda: print(line, flush=True))
        finally:
            backend.close()
    print("ended", flush=True)


def _served(
    policies: Mapping[str, Any], *, memory: str | None, max_length: int | None, max_tokens: int
) -> dict[str, ServedModel]:
    """The policies with one engine for all. Its numbers are compared with those of transformers."""
    models = {made.name: made.model for made in policies.values()}
    engine = InProcessEngine(models, memory=memory, max_length=max_length)
    for made in policies.values():
        made.engine = engine
        refuse_disagreement(made, trained=False)
    return {
        name: ServedModel(
            policy=made.name,
            engine=engine,
            renderer=made.renderer,
            tokenizer=made.tokenizer,
            context=made.longest,
            usual_most=max_tokens,
        )
        for name, made in policies.items()
    }


def _policies(
    model: str, policy: str | None, checkpoint: int | None, base: str | None, device: str, dtype: str
) -> dict[str, Any]:
    """The policies to serve, by the names of requests."""
    place = Path(model)
    if (place / RECIPE).exists():
        return _of_run(model, policy, checkpoint, device, dtype)
    for option, value in (("--policy", policy), ("--checkpoint", checkpoint)):
        if value is not None:
            raise RecipeError(
                where=f"palaestra serve {model} {option} {value}",
                what="this is no run folder, so it has one model.",
                remedy=f"Leave {option} out, or give a run folder.",
            )
    name = place.absolute().name
    if (place / CONFIG).is_file():
        return {name: _adapted(place, name, base, device, dtype)}
    return {name: _loaded(model, name, RunSetup(device=str(run_device(device))), dtype)}


def _loaded(model: str, name: str, setup: RunSetup, dtype: str) -> LanguagePolicy:
    """A policy with the weights of a model folder."""
    made = LanguagePolicy(name, setup, model=model)
    set_dtype(made.module, chosen_dtype(dtype, setup.device))
    join_weights(made.module)
    return made


def _adapted(place: Path, name: str, base: str | None, device: str, dtype: str) -> AdapterPolicy:
    """A policy with the additions of an adapter's folder, on its base."""
    below = base or description(place / CONFIG).get("base_model_name_or_path")
    if not below or not isinstance(below, str):
        raise CheckpointError(
            where=f"palaestra serve {place}",
            what="the adapter does not say on which model it was trained.",
            remedy="Name the model with --base, or serve the folder above, if `palaestra export` wrote it.",
        )
    setup = RunSetup(device=str(run_device(device)))
    setup.policies["base"] = _loaded(below, "base", setup, dtype)
    return AdapterPolicy(name, setup, of="base", model=str(place))


def _of_run(path: str, policy: str | None, checkpoint: int | None, device: str, dtype: str) -> dict[str, Any]:
    """The policies of a run that write tokens, with the weights of a checkpoint."""
    folder = RunFolder.open(path)
    settings = recipe_of(folder).settings
    setup = trained_setup(settings.model_copy(update={"device": device, "dtype": dtype}), folder, checkpoint)
    setup.runner.close()
    if setup.engine is not None:
        setup.engine.shutdown()
    writing = {name: made for name, made in setup.policies.items() if made.model is not None}
    if policy is not None and policy not in writing:
        raise UnknownName(
            where=f"palaestra serve {path} --policy {policy}",
            what=f"the run has no policy `{policy}` that writes tokens.",
            options=nearest(policy, writing) or sorted(writing),
            remedy="Name one of them, or leave --policy out to serve all.",
        )
    if not writing:
        raise UnknownName(
            where=f"palaestra serve {path}",
            what="no policy of the run writes tokens.",
            remedy="Serve a run with a policy of the kind `language` or `adapter`.",
        )
    return writing if policy is None else {policy: writing[policy]}
