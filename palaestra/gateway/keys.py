"""The keys of a body that the server does not follow: which change nothing, and which values of the others ask for
nothing. Every other key is refused, so that no wish of a client is dropped."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from palaestra.errors import nearest
from palaestra.http.rules import Refusal

# Keys that change nothing in a reply, whatever their value, and why.
HARMLESS: Mapping[str, str] = {
    "user": "a name of the client's user, for the records of a provider",
    "safety_identifier": "the same",
    "metadata": "notes of the client, for the records of a provider",
    "store": "whether a provider records the reply; this server records none",
    "request_id": "a name of the request, for logs",
    "service_tier": "the price and the speed of a provider",
    "prediction": "a guess of the reply, which may only make it faster",
    "prompt_cache_key": "where a provider keeps keys and values",
    "prompt_cache_options": "the same",
    "prompt_cache_retention": "how long it keeps them",
    "cache_prompt": "the same, of llama.cpp",
    "keep_alive": "how long Ollama keeps a model in memory",
}
# Keys of OpenAI, vLLM, SGLang, llama.cpp and OpenRouter that change a reply, and the values that ask for nothing.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "bootstrap_host": (),
    "cache_salt": ("",),
    "chat_template": (),
    "continue_final_message": (False,),
    "custom_params": ({},),
    "documents": ([],),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "ebnf": ("",),
    "echo": (False,),
    "format": ("",),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "grammar": ("",),
    "guided_choice": ([],),
    "guided_decoding_backend": (),
    "guided_grammar": ("",),
    "guided_json": ({}, ""),
    "guided_regex": ("",),
    "guided_whitespace_pattern": (),
    "ignore_eos": (False,),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "json_schema": ({}, ""),
    "kv_transfer_params": ({},),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "lora_path": ("",),
    "min_length": (0,),
    "min_p": (0,),
    "min_tokens": (0,),
    "mirostat": (0,),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "models": ([],),
    "moderation": (),
    "no_stop_trim": (False,),
    "options": ({},),
    "plugins": ([],),
    "presence_penalty": (0,),
    "priority": (0,),
    "prompt_logprobs": (),
    "provider": ({},),
    "reasoning": ({},),
    "reasoning_effort": (),
    "regex": ("",),
    "repeat_penalty": (1,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_hidden_states": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "route": (),
    "separate_reasoning": (True,),
    "session_params": ({},),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_regex": ([], ""),
    "stop_token_ids": ([],),
    "stream_reasoning": (True,),
    "structural_tag": ("",),
    "structured_outputs": ({},),
    "suffix": ("",),
    "tfs_z": (1,),
    "thinking": ({},),
    "top_a": (0,),
    "top_logprobs": (0,),
    "transforms": ([],),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "vllm_xargs": ({},),
    "web_search_options": (),
    "xtc_probability": (0,),
}
TEMPLATE = "`chat_template_kwargs` sets the variables of the chat template, if it has one for this."
FORMAT = "Ask for the format in the messages."
SAMPLING = "The server draws by `temperature`, `top_p` and `top_k` alone."
HINTS: Mapping[str, str] = {
    "response_format": FORMAT,
    "guided_json": FORMAT,
    "guided_regex": FORMAT,
    "guided_choice": FORMAT,
    "guided_grammar": FORMAT,
    "structured_outputs": FORMAT,
    "functions": "Use `tools`.",
    "function_call": "Use `tools` and `tool_choice`.",
    "top_logprobs": "`logprobs` gives the log-probabilities of the tokens that were drawn.",
    "best_of": "Use `n`.",
    "stop_token_ids": "Use `stop` with texts.",
    "ignore_eos": "`max_tokens` is the most tokens of a reply.",
    "min_p": SAMPLING,
    "frequency_penalty": SAMPLING,
    "presence_penalty": SAMPLING,
    "repetition_penalty": SAMPLING,
    "repeat_penalty": SAMPLING,
    "typical_p": SAMPLING,
    "chat_template": "The server uses the template of the model's folder.",
    "reasoning": TEMPLATE,
    "reasoning_effort": TEMPLATE,
    "thinking": TEMPLATE,
    "include_reasoning": "A thought stands in `reasoning_content`, apart from `content`.",
    "separate_reasoning": "A thought stands in `reasoning_content`, apart from `content`.",
    "cache_salt": "The server shares the keys and values of chats that begin alike.",
    "options": "Its keys belong beside `messages`.",
}


def refuse_unknown(given: Mapping[str, Any], honored: Collection[str], *, where: str = "") -> None:
    """Refuse keys that are not followed and may change the reply.

    Args:
        given: a body, without keys whose value is null. honored: keys that the server follows.
        where: the key that holds these, with a dot at its end; "": they are those of the body.

    Raises: Refusal, which names the key.
    """
    for key, value in given.items():
        if key in honored or (not where and key in HARMLESS):
            continue
        if not where and key in NEUTRAL:
            if any(_equal(value, neutral) for neutral in NEUTRAL[key]):
                continue
            hint = HINTS.get(key, "Leave it out.")
            raise Refusal(f"`{key}` is not supported. {hint}", param=key, code="unsupported_parameter")
        near = nearest(key[:100], [*honored, *(() if where else HARMLESS)])
        hint = f"Did you mean {' or '.join(f'`{one}`' for one in near)}? " if near else ""
        raise Refusal(
            f"the server does not know `{where}{key[:100]}`. {hint}Leave it out: it might change the reply.",
            param=f"{where}{key[:100]}",
            code="unknown_parameter",
        )


def _equal(value: Any, neutral: Any) -> bool:
    """Whether two values of JSON are equal. `true` is no number."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
