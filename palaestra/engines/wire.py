"""The protocol of an engine process and its client: HTTP/1.1 with JSON bodies. Weights go through a shared folder.

    POST /state                                                            → process, folder
    POST /serve     policy, version, file, model, additions, base          serve a policy, or replace it
    POST /publish   policy, version, file                                  read new weights
    POST /generate  request, close                                         close sessions, then → response
    POST /fork      session, new_session
    POST /dismiss   policies
    POST /sleep                                                            free all keys and values
    POST /counters                                                         → counters since the last such message

Except for `/state`, a body has the key `process`, with the name that `/state` has given. A process that was started in
place of another one refuses it, since it has not the policies and sessions of the earlier process. Answers are JSON. A
status other than 200 is an error.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig

from palaestra.data.interaction import Action, FinishReason
from palaestra.data.protocols import Request, Response
from palaestra.errors import ContractError, EpisodeFailure, PalaestraError, UnknownName
from palaestra.models.adapters import Addition, adapt, low_rank, named_tensors, sharing
from palaestra.models.causal_lm import kind_of
from palaestra.models.quantized import QuantizedLinear, empty_layer

OK, REFUSED, UNAUTHORIZED, OTHER_PROCESS = 200, 400, 401, 409
LARGEST_HEAD, LARGEST_BODY = 2**14, 2**26  # bytes
TOKEN = "PALAESTRA_ENGINE_TOKEN"  # the environment variable with the secret of an engine process
ERRORS = {kind.__name__: kind for kind in (EpisodeFailure, ContractError, UnknownName, PalaestraError)}


# ---- messages ---------------------------------------------------------------------------------------------
def message(path: str, body: Any, *, host: str, token: str = "") -> bytes:
    """A message for the process at this host: a request of HTTP with a JSON body."""
    content = json.dumps(body, separators=(",", ":")).encode()
    secret = f"Authorization: Bearer {token}\r\n" if token else ""
    lines = f"Host: {host}\r\n{secret}Content-Length: {len(content)}\r\nConnection: close\r\n"
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + content


async def read_answer(reader: asyncio.StreamReader) -> tuple[list[str], dict[str, str], Any]:
    """An answer: the words of the first line, the headers with names in lower case, and the JSON body.

    Raises: ConnectionError, if the connection ends, or if what arrives is no such answer.
    """
    try:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if length > LARGEST_BODY:
            raise ConnectionError(f"a message of {length} bytes; at most {LARGEST_BODY} are read")
        return first.split(), headers, json.loads(await reader.readexactly(length) or b"{}")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, RecursionError) as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error


def request_json(request: Request, session: str, policy: str) -> dict[str, Any]:
    """A request as JSON values, with the names that its session and policy have in the process."""
    said = {field.name: getattr(request, field.name) for field in fields(request) if field.name != "pictures"}
    rule = _rule_json(request.entropy_temperature)
    return {
        **said,
        "prompt": request.prompt.tolist(),
        "session": session,
        "policy": policy,
        "entropy_temperature": rule,
    }


def request_of(said: dict[str, Any]) -> Request:
    """The request of these JSON values. Raises: ContractError, for a rule for temperatures from another package."""
    prompt = np.array(said.pop("prompt"), np.int32)  # the list would take ten times the memory until the answer
    stop = tuple(said["stop"])
    rule = _rule_of(said["entropy_temperature"])
    return Request(**{**said, "prompt": prompt, "stop": stop, "entropy_temperature": rule})


def _rule_json(value: Any) -> Any:
    """A rule for temperatures as JSON values: the fields of a dataclass, which may be nested, and the class name."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    inner = {field.name: _rule_json(getattr(value, field.name)) for field in fields(value)}
    return {"class": f"{type(value).__module__}:{type(value).__name__}", **inner}


def _rule_of(said: Any) -> Any:
    """The rule that `_rule_json` wrote. Only modules of Palaestra are imported for it."""
    if not isinstance(said, dict):
        return said
    module, _, name = said["class"].partition(":")
    if not module.startswith("palaestra."):
        raise ContractError(
            where="engine process", what=f"the rule `{name}` for temperatures is not a part of Palaestra."
        )
    made = getattr(importlib.import_module(module), name)
    if not (isinstance(made, type) and is_dataclass(made)):  # else a message could call any function
        raise ContractError(where="engine process", what=f"`{name}` is no rule for temperatures.")
    return made(**{key: _rule_of(value) for key, value in said.items() if key != "class"})


def response_json(response: Response) -> dict[str, Any]:
    """A response as JSON values. `response_of` gives exactly the same float32 numbers."""
    action = response.action
    arrays = {name: getattr(action, name) for name in ("tokens", "logprobs", "entropy", "versions")}
    lists = {name: None if array is None else array.tolist() for name, array in arrays.items()}
    return {**lists, "finish": action.finish.value, "version": response.version}


def response_of(said: Mapping[str, Any]) -> Response:
    """The response of these JSON values."""
    kinds = {"tokens": np.int32, "logprobs": np.float32, "entropy": np.float32, "versions": np.int32}
    arrays: dict[str, Any] = {
        name: None if said[name] is None else np.array(said[name], kind) for name, kind in kinds.items()
    }
    return Response(action=Action(**arrays, finish=FinishReason(said["finish"])), version=said["version"])


def error_json(error: PalaestraError) -> dict[str, Any]:
    """An error as JSON values."""
    kind = next(name for name, kind in ERRORS.items() if isinstance(error, kind))
    said = {"error": kind, "where": error.where, "what": error.what, "options": error.options, "remedy": error.remedy}
    return {**said, "boundary": error.boundary} if isinstance(error, EpisodeFailure) else said


def error_of(said: Mapping[str, Any]) -> PalaestraError:
    """The error of these JSON values."""
    return ERRORS[said["error"]](**{name: value for name, value in said.items() if name != "error"})


# ---- weights ----------------------------------------------------------------------------------------------
def write_tensors(folder: Path, policy: str, version: int, tensors: Iterable[tuple[str, Tensor]]) -> Path:
    """Write tensors to `<policy>-<version>.safetensors`. The file appears only when it is complete."""
    path = folder / f"{quote(policy, safe='')}-{version}.safetensors"
    beside = path.with_suffix(".tmp")
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors}, beside)
    os.replace(beside, path)
    return path


def read_tensors(path: Path, model: nn.Module) -> None:
    """Copy the tensors of a file into the model.

    Raises: ContractError, for a tensor whose name or shape the model does not have.
    """
    places = dict(named_tensors(model))
    for name, tensor in load_file(path).items():
        if name not in places or places[name].shape != tensor.shape:
            raise ContractError(
                where=f"engine process, {path.name}", what=f"the model has no tensor {name} of this shape."
            )
        places[name].copy_(tensor)


def describe(model: Any) -> tuple[dict[str, Any], dict[str, float]]:
    """The configuration of a model with its quantized layers, and the scaling of its low-rank additions by layer.

    Additions of another kind are not listed. `read_tensors` then refuses their tensors.
    """
    parts = {name: low_rank(part) for name, part in model.named_modules()}
    additions = {name: found[1].scaling for name, found in parts.items() if found is not None}
    config = {**model.config.to_dict(), "dtype": str(next(model.parameters()).dtype).removeprefix("torch.")}
    config["quantized"] = {
        name.removesuffix(".base_layer"): part.described()
        for name, part in model.named_modules()
        if isinstance(part, QuantizedLinear)
    }
    return config, additions


def empty_model(config: Mapping[str, Any]) -> Any:
    """A model with this configuration and random weights."""
    options = {name: value for name, value in config.items() if name not in ("model_type", "dtype", "quantized")}
    made, dtype = AutoConfig.for_model(config["model_type"], **options), getattr(torch, config["dtype"])
    model = kind_of(made).from_config(made, dtype=dtype).eval().requires_grad_(False)
    for place, said in config["quantized"].items():
        model.set_submodule(place, empty_layer(said, dtype))
    return model


def with_additions(base: Any, additions: Mapping[str, float], path: Path) -> Any:
    """A model that shares the weights of the base and has the low-rank additions of a file."""
    model, tensors, device = sharing(base), load_file(path), next(base.parameters()).device

    def product(weight: Tensor) -> nn.Linear:
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        linear.weight = nn.Parameter(weight.to(device, copy=True), requires_grad=False)
        return linear

    adapt(
        model,
        {
            place: Addition(product(tensors[f"{place}.lora_A"]), product(tensors[f"{place}.lora_B"]), scaling)
            for place, scaling in additions.items()
        },
    )
    return model
