"""Agents that were written for OpenAI's client, with nothing of this project in them."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import httpx
import openai

FIND: Any = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {"type": "object", "properties": {"id": {"type": "integer"}, "words": {"type": "string"}}},
    },
}


def client(base_url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)


def ask_once(prompt: str, base_url: str) -> str:
    """The model's own answer."""
    made = client(base_url).chat.completions.create(model="gpt", messages=[{"role": "user", "content": prompt}])
    return made.choices[0].message.content


async def ask_async(messages: list[Any], base_url: str, api_key: str, model: str) -> str:
    """As `ask_once`, in a stream, with the asynchronous client."""
    made = openai.AsyncOpenAI(base_url=base_url, api_key=api_key)
    stream = await made.chat.completions.create(model=model, messages=messages, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


def three_turns(prompt: str, base_url: str) -> str:
    """A conversation of three turns, each of which goes on from the one before."""
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]
    for turn in range(3):
        made = client(base_url).chat.completions.create(model="gpt", messages=messages, temperature=0, seed=1)
        messages.append({"role": "assistant", "content": made.choices[0].message.content})
        messages.append({"role": "user", "content": f"and {turn}?"})
    return str(messages[-2]["content"])


def tool_user(prompt: str, base_url: str) -> str:
    """Calls tools as long as the model asks for it."""
    messages: list[Any] = [{"role": "user", "content": prompt}]
    for _ in range(6):
        made = client(base_url).chat.completions.create(model="gpt", messages=messages, tools=[FIND])
        message = made.choices[0].message
        if not message.tool_calls:
            return str(message.content)
        messages.append(message.model_dump(exclude_none=True))
        for call in reversed(message.tool_calls):  # in any order
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"found {call.function.arguments}"})
    return "none"


def wanderer(prompt: str, base_url: str, seed: int) -> str:
    """Goes on, goes back, changes what was said, asks for several replies, and sends wrong requests."""
    draw, ask = random.Random(seed), client(base_url).chat.completions.create
    messages: list[Any] = [{"role": "user", "content": prompt}]
    for turn in range(draw.randint(2, 6)):
        what = draw.random()
        places = [n for n, one in enumerate(messages) if one["role"] == "user"]
        if what < 0.2:
            messages = messages[: draw.choice(places) + 1]
        elif what < 0.35:
            place = draw.choice(places)
            messages[place] = {"role": "user", "content": f"other {turn}"}
        options: dict[str, Any] = {"tools": [FIND]} if draw.random() < 0.7 else {}
        options |= {"n": 2} if draw.random() < 0.2 else {}
        options |= {"stop": ["r", "é"]} if draw.random() < 0.2 else {}
        options |= {"max_tokens": 30} if draw.random() < 0.2 else {}
        if draw.random() < 0.1:
            try:
                ask(model="gpt", messages=[{"role": "king", "content": "x"}])  # type: ignore[call-overload]
            except openai.BadRequestError:
                pass
        message = draw.choice(ask(model="gpt", messages=messages, **options).choices).message
        messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": f"found {call.function.arguments}"}
            for call in message.tool_calls or ()
        ]
        messages += results or [{"role": "user", "content": f"go on {turn}"}]
        if results and draw.random() < 0.3:
            messages.append({"role": "user", "content": "quick"})
    return "done"


def at_once(prompt: str, base_url: str) -> str:
    """Three requests at the same time."""

    async def all_three() -> list[str]:
        made = openai.AsyncOpenAI(base_url=base_url, api_key="none")
        talks = [[{"role": "user", "content": f"{prompt} {place}"}] for place in range(3)]
        replies = await asyncio.gather(*(made.chat.completions.create(model="gpt", messages=talk) for talk in talks))  # type: ignore[arg-type]
        return [reply.choices[0].message.content for reply in replies]

    return " ".join(asyncio.run(all_three()))


def some_fail(prompt: str, base_url: str) -> Any:
    """Fails in the way that the task names."""
    answer = ask_once(prompt, base_url)
    if "raise" in prompt:
        raise ValueError("I am lost")
    if "sleep" in prompt:
        time.sleep(3)
    if "none" in prompt:
        return None
    if "exit" in prompt:
        raise SystemExit(3)
    return answer


def never_asks(prompt: str) -> str:
    return prompt


def endless(prompt: str, base_url: str) -> str:
    """Begins a new chat again and again."""
    turn = 0
    while True:
        turn += 1
        ask_once(f"{prompt} {turn}", base_url)


def grows(prompt: str, base_url: str, careful: bool = False) -> str:
    """A chat that outgrows the context."""
    messages: list[Any] = [{"role": "user", "content": prompt}]
    while True:
        made = client(base_url).chat.completions.create(model="gpt", messages=messages)
        messages += [{"role": "assistant", "content": made.choices[0].message.content}]
        messages += [{"role": "user", "content": "more " * 20}]


def grows_and_stops(prompt: str, base_url: str) -> str:
    """As `grows`, but it answers when the context is full."""
    try:
        return grows(prompt, base_url)
    except openai.BadRequestError as error:
        return str(error.code)


def counts(prompt: str, base_url: str, act: Any) -> None:
    """Asks the model and acts in the environment, until it is over."""
    shown = prompt
    while shown is not None:
        shown = act(ask_once(shown, base_url))


def wants_too_much(prompt: str, reward: float) -> str:
    return prompt


COMMAND = """\
import json, os, sys, urllib.request
task = json.loads(sys.stdin.readline())
assert os.environ["OPENAI_BASE_URL"] == task["base_url"]
if "exit" in task["prompt"]:
    sys.exit("I give up")
body = json.dumps({"messages": [{"role": "user", "content": task["prompt"]}]}).encode()
ask = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
ask.add_header("authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
print(json.load(urllib.request.urlopen(ask))["choices"][0]["message"]["content"])
"""


def fails_by_chance(prompt: str, base_url: str, seed: int) -> str:
    """Fails in a third of the episodes."""
    answer = ask_once(prompt, base_url)
    if seed % 3 == 0:
        raise RuntimeError("by chance")
    return answer


def impatient(prompt: str, base_url: str) -> str:
    """Leaves its first request, and asks again."""
    try:
        client(base_url).with_options(timeout=0.2).chat.completions.create(
            model="gpt", messages=[{"role": "user", "content": prompt}]
        )
    except openai.APITimeoutError:
        return three_turns(f"{prompt} again", base_url)
    return "none"


def disorderly(prompt: str, base_url: str, seed: int) -> str:
    """A chat of three turns, with requests between them that are broken, too large, at a wrong address, or left."""
    with httpx.Client(timeout=120, verify=False) as own:  # a client that threads share may close a connection in use
        return _disorderly(own, prompt, base_url, random.Random(seed))


def _disorderly(own: httpx.Client, prompt: str, base_url: str, draw: random.Random) -> str:
    url = f"{base_url}/chat/completions"
    messages: list[Any] = [{"role": "user", "content": prompt}]
    for turn in range(1, 4):
        what = draw.randrange(5)
        if what == 0:
            assert own.post(url, content=b'{"messages": [').status_code == 400
        elif what == 1:
            assert own.post(url, json={"messages": [{"role": "user", "content": "x" * 60_000}]}).status_code == 413
        elif what == 2:
            assert own.post(url.replace("/s/", "/s/other"), json={"messages": messages}).status_code == 404
        elif what == 3:
            try:
                own.post(url, json={"messages": [{"role": "user", "content": f"slow {prompt}"}]}, timeout=0.2)
            except httpx.TimeoutException:
                pass
        answer = own.post(url, json={"messages": messages})
        assert answer.status_code == 200, answer.text
        messages.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]})
        messages.append({"role": "user", "content": f"{prompt} {turn}"})
    return "\n".join(one["content"] for one in messages if one["role"] == "assistant")


def sends_a_book(prompt: str, base_url: str) -> str:
    """Sends messages that no context holds, at once or after a first reply, unless the task is fine."""
    when, _, kind = prompt.partition(" ")
    large = {
        "book": [{"role": "user", "content": "words " * 500_000}],
        "crowd": [{"role": "user", "content": "x"}] * 40_000,
        "spaces": [{"role": "user", "content": " " * 2_500_000}],
    }
    if when != "first":
        ask_once(prompt, base_url)
    try:
        if kind:
            client(base_url).chat.completions.create(model="gpt", messages=large[kind])  # type: ignore[arg-type]
    except openai.BadRequestError as error:
        if when != "careful":
            raise
        return str(error.code)
    return "fine"
