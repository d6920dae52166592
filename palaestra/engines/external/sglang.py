"""The engine `sglang`: servers of SGLang, as of version 0.5.23.

    python -m sglang.launch_server --model-path MODEL
    python -m sglang.launch_server --model-path MODEL --enable-lora --max-lora-rank 16 --lora-target-modules all

What is asked of the server, beside `/generate`, `/v1/models` and `/health_generate`:

    whole weights   /update_weights_from_disk
    adapters        /load_lora_adapter, /unload_lora_adapter
    memory          /release_memory_occupation, /resume_memory_occupation

Each request has the field `extra_key`, which names the weights. So the server never reads keys and values that earlier
weights computed. Its answers say their `weight_version`, by which a server that was started again is recognized. With
`--enable-deterministic-inference` the same seed gives the same tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from palaestra.engines.external.dialect import Asked, Dialect, Piece
from palaestra.engines.external.engine import ServedEngine
from palaestra.engines.external.servers import Refused, Server
from palaestra.registry import Positive, PositiveInt, register


class SGLang(Dialect):
    """The messages of SGLang."""

    kind: ClassVar[str] = "sglang"
    health: ClassVar[str] = "/health_generate"
    key: ClassVar[str] = "SGLANG_API_KEY"
    reserved: ClassVar[int] = 6
    unscaled: ClassVar[str] = "Start the server without SGLANG_RETURN_ORIGINAL_LOGPROB."
    hottest: ClassVar[float] = math.inf
    even: ClassVar[Mapping[str, float]] = {"temperature": 1e6}
    head_apart: ClassVar[bool] = False

    def question(self, asked: Asked) -> tuple[str, dict[str, Any]]:
        """A generation from token ids.

        `ignore_eos` would switch off all stop ids, so it is set only if there are none.
        """
        request = asked.request
        sampling = {
            "max_new_tokens": asked.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k or -1,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": [int(one) for one in request.stop],
            "ignore_eos": not request.stop,
            "skip_special_tokens": False,
            "no_stop_trim": True,
        }
        if asked.seed is not None:
            sampling["sampling_seed"] = asked.seed
        body = {
            "input_ids": asked.ids,
            "sampling_params": sampling,
            "return_logprob": True,
            "extra_key": asked.salt,
        }
        body |= {"return_sampling_mask": True} if asked.cuts_off else {}
        return "/generate", body | ({"lora_path": asked.adapter} if asked.adapter else {})

    def piece(self, answer: Any, asked: Asked) -> Piece:
        """What the answer says. Where unlikely tokens are cut off, log-probabilities are of what is left."""
        meta = answer["meta_info"]
        drawn = meta.get("output_token_logprobs") or []
        logprobs = [float(one[0]) for one in drawn]
        if asked.cuts_off and drawn:
            logprobs = [float(value) for value in meta["output_token_sampling_logprobs"]]
        spans = meta.get("weight_versions") or [{"version": meta["weight_version"], "start": 0}]
        return Piece(
            tokens=[int(one[1]) for one in drawn],
            logprobs=logprobs,
            finish=str(meta["finish_reason"]["type"]),
            labels=[(str(span["version"]), int(span["start"])) for span in spans],
            cached=int(meta.get("cached_tokens") or 0),
        )

    def has_lost(self, error: Refused, adapter: str) -> bool:
        return adapter != "" and "not loaded" in error.said

    def load_weights(self, server: Server, folder: str, label: str, seconds: float) -> None:
        body = {"model_path": folder, "weight_version": label, "abort_all_requests": True, "flush_cache": True}
        server.send("/update_weights_from_disk", body, seconds=seconds)

    def load_adapter(self, server: Server, name: str, folder: str, seconds: float) -> None:
        try:
            server.send("/load_lora_adapter", {"lora_name": name, "lora_path": folder}, seconds=seconds)
        except Refused as error:
            if "already" not in error.said:  # this name is of these weights alone, so another process has sent them
                raise

    def unload_adapter(self, server: Server, name: str) -> None:
        server.send("/unload_lora_adapter", {"lora_name": name})

    def free(self, server: Server, seconds: float) -> None:
        server.send("/release_memory_occupation", {"tags": ["kv_cache", "weights"]}, seconds=seconds)

    def resume(self, server: Server, seconds: float) -> None:
        server.send("/resume_memory_occupation", {"tags": ["kv_cache", "weights"]}, seconds=seconds)

    def remedy(self, what: str) -> str:
        if "adapter" in what:
            return (
                "Start it with `--enable-lora`, `--lora-target-modules all` and `--max-lora-rank` as high as the rank "
                "of the recipe. It must see the folder."
            )
        if "memory" in what:
            return "Start it with `--enable-memory-saver`, or set `free_memory: false`."
        return "It must see the folder, and must have been started with a model of the same architecture."


@register("engine", "sglang", extra="serve", modules=("httpx2",))
class SGLangEngine(ServedEngine):
    """Servers of SGLang generate, which somebody has started. New weights reach them through a folder.

    Requests and answers carry token ids and log-probabilities. With whole weights, a response that is under way goes on
    with the new ones. With adapters, it ends with those that began it. Each token carries the version that drew it.

    Raises: RecipeError, for an address that is none, and for a server on another machine without `folder`.
    """

    dialect = SGLang()

    def __init__(
        self,
        models: Mapping[str, Any],
        device: str,
        *,
        url: str | tuple[str, ...],
        folder: str | None = None,
        server_folder: str | None = None,
        key: str | None = None,
        model: str | None = None,
        initial_weights: bool = True,
        free_memory: bool = False,
        patience: Positive = 600.0,
        response_seconds: Positive = 600.0,
        check_seconds: Positive = 10.0,
        retries: PositiveInt = 3,
        in_flight: PositiveInt = 256,
        max_length: PositiveInt | None = None,
        seeds: bool | None = None,
    ) -> None:
        """
        Args:
            models: policy name → causal language model. device: of the trainer; not used.
            url: address of the server, such as `http://127.0.0.1:30000`, or a list of addresses. Conversations are
                spread over all servers that answer.
            folder: where weights are written for the servers, which must see it too. None: a temporary folder, if all
                servers are on this machine.
            server_folder: path of the same folder at the servers, if it differs, as in a container.
            key: name of the environment variable that holds the servers' key. None: SGLANG_API_KEY.
            model: name of the base model at the servers. None: the first that they list.
            initial_weights: send the base weights of the run before the first request. False: the servers have loaded
                the same model themselves. Adapters are always sent.
            free_memory: let the servers free their memory during updates, as is needed beside a trainer on one device.
            patience: seconds that a request waits while no server answers, as when they start. Then its episode fails.
            response_seconds: seconds that one response may take.
            check_seconds: seconds without an answer after which a server is asked whether it is up. It has three times
                as long to answer. Higher: a server that hangs is noticed later.
            retries: how often a request is sent again that a server has answered with an error.
            in_flight: most requests at each server at once. Higher: faster, if the server can batch so many.
            max_length: most ids of a conversation, if fewer than the model's and the server's context.
            seeds: send each request's seed. None: yes. Without seeds, two equal runs differ.
        """
        self.connect(
            models,
            url=url,
            folder=folder,
            server_folder=server_folder,
            key=key,
            model=model,
            initial_weights=initial_weights,
            free_memory=free_memory,
            patience=patience,
            response_seconds=response_seconds,
            check_seconds=check_seconds,
            retries=retries,
            in_flight=in_flight,
            max_length=max_length,
            seeds=seeds,
        )
