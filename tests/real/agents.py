"""Agents of other libraries against the gateway, which `make test-agents` installs and calls this for.

    python tests/real/agents.py install FOLDER          the libraries, in two environments below FOLDER
    python tests/real/agents.py run FOLDER [LIBRARY …]  all of it; exit 1 if something does not hold

(1) Each agent plays through `palaestra serve`'s application, whole and in streams: it calls its tool, reads the result,
answers, and goes on with the chat. The model answers from a script, so that all of this happens. (2) What asks another
API, or demands a call, gets an error that names what to write, which is what (1) has tried. (3) All agents play in one
iteration of a run, as commands of `outside_agent`, with SmolLM2-135M and its own words; no request of theirs fails.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from palaestra.store.metrics import MetricsLog
from tests.chat.conversations import policy_of
from tests.gateway.served import Scripted, model_of, serving
from tests.real.agent_libraries import LIBRARIES, QUESTIONS, STOCK

ROOT = Path(__file__).resolve().parents[2]
AGENTS = Path(__file__).with_name("agent_libraries.py")
# The environments by the version of `openai` that their libraries take.
PACKAGES = {
    "openai-3": (
        *("openai>=3,<4", "openai-agents", "langchain", "langchain-openai", "pydantic-ai-slim[openai]"),
        *("smolagents[openai]", "litellm", "autogen-agentchat", "autogen-ext[openai]", "agno", "dspy"),
    ),
    "openai-2": ("openai>=2,<3", "llama-index-llms-openai-like", "strands-agents[openai]"),
}
# `-P`: a library is named `agents`, as this file is.
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "PYTHONPATH": ""}
SECONDS = 300.0
ANSWERS = ["There are 7.", "There are 9."]
# What the error of a way that the server does not have must name: what the agent of the other ways uses.
SELECTS = {
    "openai_agents": "`OpenAIChatCompletionsModel`",
    "openai_agents_by_default": 'set_default_openai_api("chat_completions")',
    "langchain": "use_responses_api=False",
    "pydantic_ai": "`OpenAIChatModel`",
    "smolagents_tools": "Use auto",
    "litellm": "openai/NAME",
    "agno": "Agno: `OpenAILike`",
}
CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'


def install(folder: Path) -> None:
    """Make the environments. Raises: CalledProcessError, if pip cannot install a package."""
    for name, packages in PACKAGES.items():
        venv.create(folder / name, with_pip=True)
        pip = [str(folder / name / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, *packages], check=True)


def scripted(read: str) -> str:
    """The reply of the model: a call of the tool, or the answer once the result is there.

    Args:
        read: all that it has read.
    """
    question = QUESTIONS[1] if QUESTIONS[1] in read else QUESTIONS[0]
    item, since = ("M4" if question is QUESTIONS[1] else "M3"), read.rpartition(question)[2]
    answer, has_result = f"There are {STOCK[item]}.", f"{item}: {STOCK[item]} pieces" in since
    arguments = json.dumps({"item": item})
    if "[[ ## next_thought ## ]]" in read:  # the form of dspy
        tool, values = ("finish", "{}") if has_result else ("stock", arguments)
        fields = {"next_thought": "I look.", "next_tool_name": tool, "next_tool_args": values, "completed": ""}
    elif "[[ ## reasoning ## ]]" in read:
        fields = {"reasoning": "I have looked.", "answer": answer, "completed": ""}
    elif "<code>" in read:  # that of a `CodeAgent`
        return f'<code>\nfinal_answer("There are " + stock(item="{item}").split()[1] + ".")\n</code>'
    elif not has_result:
        return "I look. " + CALL % ("stock", arguments)
    else:
        final = CALL % ("final_answer", json.dumps({"answer": answer}))
        return final if '"final_answer"' in read else answer
    return "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items())


def outcome_of(folder: Path, name: str, address: str, way: str) -> dict[str, Any]:
    """What came of an agent's play."""
    python = folder / LIBRARIES[name][-1] / "bin" / "python"
    command = [str(python), "-P", str(AGENTS), name, f"{address}/v1", "tiny", way]
    try:
        done = subprocess.run(command, env=os.environ | QUIET, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"error": f"it has not ended within {SECONDS:g} s"}
    if done.returncode:
        return {"error": done.stderr[-3000:]}
    outcome: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return outcome


def is_right(name: str, way: str, outcome: dict[str, Any]) -> bool:
    """Whether an agent has answered, or has got an error that helps."""
    if way == "other":
        return SELECTS[name] in outcome.get("error", "")
    return [answer.removeprefix("I look.") for answer in outcome.get("answers", ())] == ANSWERS


def check_serve(folder: Path, names: Sequence[str], place: Path) -> Iterator[tuple[bool, str]]:
    """(1) and (2): what held, and a line about it."""
    policy = policy_of("qwen2_5", place)
    with serving(model_of(policy, Scripted(policy, scripted), context=32_768)) as address:
        for name in names:
            for way in LIBRARIES[name][2]:
                outcome = outcome_of(folder, name, address, way)
                holds = is_right(name, way, outcome)
                package = f"{LIBRARIES[name][0]} {outcome.get('version')}, openai {outcome.get('openai')}"
                yield holds, f"{name}, {way} ({package})" + ("" if holds else f":\n{json.dumps(outcome, indent=1)}")


def check_run(folder: Path, names: Sequence[str], place: Path) -> tuple[bool, str]:
    """(3): whether it holds, and a line about it."""
    ways = [f"{name} {way}" for name in names for way in LIBRARIES[name][2] if way != "other"]
    rows = [{"prompt": way, "answer": "7"} for way in ways]
    (place / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (place / "held.jsonl").write_text(json.dumps({**rows[0], "prompt": f"{ways[0]} held out"}), encoding="utf-8")
    recipe = {
        "name": "agents",
        "environment": {"dataset": {"path": "rows.jsonl", "eval": "held.jsonl", "reward": [{"length": {"most": 1}}]}},
        "program": {
            "outside_agent": {"command": [sys.executable, "-P", str(AGENTS), "play", str(folder)], "seconds": 600}
        },
        "agents": {"*": {"policy": "main", "context": "full_history"}},
        "policies": {"main": {"policy": {"language": {"model": "SmolLM2-135M-Instruct", "lora": {"rank": 8}}}}},
        "rollout": {"tasks": len(rows), "group": 1, "response_tokens": 24, "max_turns": 8, "stuck_seconds": None},
        "advantage": "reinforce_plus_plus",
        "training": {"iterations": 1, "max_failed": 1.0, "max_empty": 2},
        "evaluation": {"tasks": 1},
    }
    (place / "agents.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    command = [sys.executable, "-m", "palaestra", "train", str(place / "agents.yaml"), f"run={place / 'run'}"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | QUIET | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    if done.returncode:
        return False, f"the run ended with status {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    (line,) = MetricsLog(place / "run").metrics.read()
    failed = line.get("episodes/failed", 0)
    return not failed, f"{len(rows)} agents played in a run, and {failed:g} failed" + (done.stdout if failed else "")


def main(folder: Path, *names: str) -> None:
    """Try these libraries, and print a line about each."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    print(f"Palaestra {commit.strip()}, {platform.machine()}, {os.cpu_count()} cores", flush=True)
    failed, chosen = False, names or tuple(LIBRARIES)
    with tempfile.TemporaryDirectory(prefix="palaestra-agents-") as temporary:
        place, began = Path(temporary), time.monotonic()
        for holds, line in check_serve(folder, chosen, place / "model"):
            failed |= not holds
            print(f"{'holds ' if holds else 'FAILED'}  {line} ({time.monotonic() - began:.0f} s)", flush=True)
            began = time.monotonic()
        holds, line = check_run(folder, chosen, place)
        failed |= not holds
        print(f"{'holds ' if holds else 'FAILED'}  {line} ({time.monotonic() - began:.0f} s)", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    task, target, *libraries = sys.argv[1:]
    install(Path(target)) if task == "install" else main(Path(target).absolute(), *libraries)
