"""The engine `vllm`: servers of vLLM, tested with version 0.32.

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs
    VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve MODEL --enable-lora --max-lora-rank 16

What is asked of the server, beside `/v1/completions`, `/v1/models` and `/health`:

    whole weights   /pause, /collective_rpc (reload_weights), /reset_prefix_cache, /update_weight_version, /resume,
                    /weight_info
    adapters        /v1/load_lora_adapter, /v1/unload_lora_adapter
    memory          /sleep, /wake_up

Each request has the field `cache_salt`, which names the weights. So the server never reads keys and values that earlier
weights computed. It also asks for `weight_versions`, by which a server that was started again is recognized. Version
0.32 does not give them, and is asked for `/weight_info` after each response.

On a CPU, vLLM keeps a second copy of the output layer, also if the layer shares its weights with the embeddings. A
folder without that layer leaves the copy as it was. So the layer is written apart. And on a CPU vLLM ends with "CPU
Generator does not use offset", when a request with a seed has a prompt that is read in pieces. So it gets no seeds if
`/server_info` names a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from palaestra.engines.external.dialect import Asked, Dialect, Piece
from palaestra.engines.external.engine import ServedEngine
from palaestra.engines.external.servers import NOT_FOUND, Refused, Server
from palaestra.registry import Positive, PositiveInt, register


class VLLM(Dialect):
    """The messages of vLLM."""

    kind: ClassVar[str] = "vllm"
    health: ClassVar[str] = "/health"
    key: ClassVar[str] = "VLLM_API_KEY"
    reserved: ClassVar[int] = 0
    unscaled: ClassVar[str] = "Start the server with `--logprobs-mode processed_logprobs`."
    hottest: ClassVar[float] = 2.0
    even: ClassVar[Mapping[str, float]] = {"temperature": 1.0, "top_k": 1}
    head_apart: ClassVar[bool] = True

    def question(self, asked: Asked) -> tuple[str, dict[str, Any]]:
        """A completion of token ids. The defaults of the model's generation config are overruled."""
        request = asked.request
        seed = {} if asked.seed is None else {"seed": asked.seed}
        return "/v1/completions", seed | {
            "model": asked.adapter or asked.base,
            "prompt": asked.ids,
            "max_tokens": asked.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "logprobs": 0,
            "return_token_ids": True,
            "return_weight_versions": True,
            "ignore_eos": True,
            "stop_token_ids": [int(one) for one in request.stop],
            "skip_special_tokens": False,
            "add_special_tokens": False,
            "cache_salt": asked.salt,
        }

    def piece(self, answer: Any, asked: Asked) -> Piece:
        choice, usage = answer["choices"][0], answer.get("usage") or {}
        return Piece(
            tokens=[int(token) for token in choice["token_ids"]],
            logprobs=[float(value) for value in choice["logprobs"]["token_logprobs"]] if choice["token_ids"] else [],
            finish=str(choice["finish_reason"]),
            labels=[(str(span["version"]), int(span["start"])) for span in choice.get("weight_versions") or ()],
            cached=int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
        )

    def has_lost(self, error: Refused, adapter: str) -> bool:
        return error.status == NOT_FOUND and adapter != ""

    def refuses_seeds(self, server: Server) -> bool:
        try:
            said = server.send("/server_info", get=True)
        except Refused:  # it was started without VLLM_SERVER_DEV_MODE
            return False
        return "device_config=cpu" in str(said.get("vllm_config"))

    def label(self, server: Server) -> str | None:
        try:
            return str(server.send("/weight_info", get=True)["weight_version"])
        except Refused:  # it was started without VLLM_SERVER_DEV_MODE
            return None

    def load_weights(self, server: Server, folder: str, label: str, seconds: float) -> None:
        server.send("/pause?mode=abort", seconds=seconds)
        try:
            body = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
            server.send("/collective_rpc", body, seconds=seconds)
            server.send("/reset_prefix_cache", seconds=seconds)
            server.send("/update_weight_version", {"new_version": label}, seconds=seconds)
        finally:
            server.send("/resume", seconds=seconds)

    def load_adapter(self, server: Server, name: str, folder: str, seconds: float) -> None:
        body = {"lora_name": name, "lora_path": folder, "load_inplace": True}
        server.send("/v1/load_lora_adapter", body, seconds=seconds)

    def unload_adapter(self, server: Server, name: str) -> None:
        server.send("/v1/unload_lora_adapter", {"lora_name": name})

    def free(self, server: Server, seconds: float) -> None:
        server.send("/sleep?level=1", seconds=seconds)

    def resume(self, server: Server, seconds: float) -> None:
        server.send("/wake_up", seconds=seconds)

    def remedy(self, what: str) -> str:
        if "adapter" in what:
            return (
                "Start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, `--enable-lora` and `--max-lora-rank` as high as "
                "the rank of the recipe. It must see the folder."
            )
        if "memory" in what:
            return "Start it with VLLM_SERVER_DEV_MODE=1 and `--enable-sleep-mode`, or set `free_memory: false`."
        return (
            "Start it with VLLM_SERVER_DEV_MODE=1. It must see the folder. If only adapters are trained and it has "
            "loaded the same base model, set `initial_weights: false`."
        )


@register("engine", "vllm", extra="serve", modules=("httpx2",))
class VLLMEngine(ServedEngine):
    """Servers of vLLM generate, which somebody has started. New weights reach them through a folder.

    Requests and answers carry token ids and log-probabilities. With whole weights, a response that is under way goes on
    with the new ones. With adapters, it ends with those that began it. Each token carries the version that drew it.

    Raises: RecipeError, for an address that is none, and for a server on another machine without `folder`.
    """

    dialect = VLLM()

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
            url: address of the server, such as `http://127.0.0.1:8000`, or a list of addresses. Conversations are
                spread over all servers that answer.
            folder: where weights are written for the servers, which must see it too. None: a temporary folder, if all
                servers are on this machine.
            server_folder: path of the same folder at the servers, if it differs, as in a container.
            key: name of the environment variable that holds the servers' key. None: VLLM_API_KEY.
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
            seeds: send each request's seed. None: yes, unless a server says that it computes on a CPU, where vLLM ends
                at requests with seeds. Without seeds, two equal runs differ.
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
