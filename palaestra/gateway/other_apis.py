"""What a client reads that asks an address of another API: which API this server has, and how clients select it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from palaestra.http.rules import Refusal

HERE = "This server has OpenAI's chat completions API, POST {base}/chat/completions."
SELECT = (  # how libraries that could use another API, too, select chat completions
    'openai-agents: `OpenAIChatCompletionsModel`, or `set_default_openai_api("chat_completions")`. '
    "pydantic-ai: `OpenAIChatModel`. LangChain: `ChatOpenAI(…, use_responses_api=False)`. "
    "smolagents: `OpenAIServerModel`. LlamaIndex: `OpenAILike(…, is_chat_model=True)`. "
    "AutoGen: `OpenAIChatCompletionClient`. Agno: `OpenAILike`. Strands: `OpenAIModel`. "
    'CrewAI, LiteLLM, Google ADK and DSPy: the model "openai/NAME". Vercel AI SDK: `openai.chat(NAME)`. '
    "OpenAI's client: `client.chat.completions.create`."
)
BASE = "The client's `base_url` must be {base}, with one /v1 at its end."
# The end, or the beginning (with a slash after it), of an address → what its API is, and what to do.
OTHERS: Sequence[tuple[tuple[str, ...], str, str]] = (
    (("/v1/responses", "/v1/conversations"), "OpenAI's Responses API", f"{HERE} {SELECT}"),
    (("/v1/messages", "/v1/complete"), "Anthropic's API", f"{HERE} Use a client of OpenAI's protocol. {SELECT}"),
    (
        ("/api/chat", "/api/generate", "/api/tags", "/api/show", "/api/version", "/api/embed", "/api/embeddings"),
        "Ollama's API",
        f"{HERE} Use a client of OpenAI's protocol in place of Ollama's. {SELECT}",
    ),
    (("/v1/assistants", "/v1/threads"), "OpenAI's Assistants API", f"{HERE} {SELECT}"),
    (("/v1/realtime",), "OpenAI's Realtime API", f"{HERE} {SELECT}"),
    (
        ("/v1/embeddings", "/embeddings", "/embed", "/v1/rerank", "/rerank", "/v1/score", "/score", "/pooling"),
        "an API of embeddings and scores",
        "This server writes texts and gives no embeddings. Take them from another server.",
    ),
    (
        ("/v1/images", "/v1/audio", "/v1/videos", "/v1/moderations"),
        "an API for images, sound or moderation",
        f"This server writes texts alone. {HERE}",
    ),
    (
        ("/v1/files", "/v1/batches", "/v1/uploads", "/v1/vector_stores", "/v1/containers", "/v1/fine_tuning"),
        "an API that stores files or starts jobs",
        f"This server keeps nothing of a request. {HERE}",
    ),
    (
        ("/tokenize", "/detokenize", "/v1/tokenize", "/v1/detokenize", "/apply-template", "/props"),
        "an API of tokenizers",
        "Load the tokenizer of the model's folder with transformers. `usage.prompt_tokens` of a reply counts tokens.",
    ),
    (("/generate", "/generate_stream", "/completion", "/inference/v1/generate"), "another server's own API", HERE),
)


EPISODE = re.compile(r"(?:/s/[^/]+)?")  # what stands before all addresses of the server beside a run


def no_address(path: str) -> Refusal:
    """The refusal of a request at an address that the server does not have."""
    found = EPISODE.match(path)
    assert found is not None
    base, rest = f"{found[0]}/v1", path[found.end() :]
    if rest in ("/chat/completions", "/completions", "/models") or rest.startswith("/v1/v1/"):
        hint = BASE
    else:
        known = (f"It belongs to {kind}. {hint}" for names, kind, hint in OTHERS if _belongs(rest, names))
        hint = next(known, HERE)
    return Refusal(f"there is no address {path[:200]}. {hint.format(base=base)}", status=404, code="not_found")


def _belongs(path: str, names: Sequence[str]) -> bool:
    return any(path == name or path.startswith(f"{name}/") for name in names)
