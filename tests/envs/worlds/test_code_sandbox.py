"""What must hold of the world `code` if a policy's code runs:

1. It keeps the environment's contract, for functions and repositories.
2. `run` shows output and tracebacks, `test` shows failing tests, and hidden tests judge what `submit` hands in.
3. Files of repositories can be read, changed and written; the expert repairs them, also after wrong acts.
4. What is sent into the sandbox never contains an expected value.
5. No trick makes a wrong submission pass: early exits, printed reports, patched tools, searched memory, threads, loops.
6. Right submissions pass even if they print, start threads or register exit handlers.
7. Expressions have the same values as in the sandbox.
8. Many episodes run at the same time on one pool; the last one that closes ends all its processes.
9. Equal jobs run once; results of runs that a limit ended are not cached.
10. Without isolation, nothing runs unless a recipe allows it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from dataclasses import replace

import pytest

from palaestra.data import Action
from palaestra.envs.worlds.code import machines
from palaestra.envs.worlds.code.acts import Act, write_act
from palaestra.envs.worlds.code.chains import DOMAINS
from palaestra.envs.worlds.code.judging import Job, calls, judged, worked_out
from palaestra.envs.worlds.code.problems import MODULE, Sizes, Test, build, program
from palaestra.envs.worlds.code.world import AGENT, Code
from palaestra.errors import PalaestraError, RecipeError
from palaestra.testing import check_environment
from tests.extras import needs
from tests.messages import told

pytestmark = needs("bubblewrap")

LIMITS = {"timeout_s": 20.0, "memory_mb": 256}
RIGHT = "def f(x):\n    return x * 3 + 1\n"
TESTS = tuple(Test(x=x, want=x * 3 + 1) for x in (1, 2, 7))


@pytest.fixture(scope="module")
def machine():
    borrowed = machines.borrow("bubblewrap", 2)
    yield borrowed
    machines.give_back(borrowed)


@pytest.fixture(scope="module")
def loop():
    found = asyncio.new_event_loop()
    yield found
    found.close()


@pytest.fixture
def say(loop):
    def said(env, act):
        result = env.step({AGENT: Action(text=act if isinstance(act, str) else write_act(act, env._style))})
        return loop.run_until_complete(result) if inspect.isawaitable(result) else result

    return said


def seen(result):
    return [*result.observations.values(), *result.last.values()][0].text


def started(**options):
    env = Code(**options)
    env.reset(env.tasks("train", 1, 0)[0])
    return env


@pytest.mark.parametrize(
    "options",
    [
        {"style": "fenced"},
        {"style": "json", "score": "fraction", "noise": 0.2},
        pytest.param({"kind": "repository"}, marks=pytest.mark.slow),
        pytest.param(
            {"kind": "repository", "style": "tagged", "paraphrased": True, "wrong": 0.5}, marks=pytest.mark.slow
        ),
    ],
)
def test_1_contract(options, machine):
    check_environment(Code(**options), make=lambda: Code(**options), episodes=2, max_turns=6)


# ---- acts -------------------------------------------------------------------------------------------------
def test_2_functions(say, machine):
    env = started(style="fenced", text="words", max_turns=20, score="fraction")
    problem = replace(build(Sizes(), 2), reference="x * 3 + 1", visible=TESTS[:2], hidden=TESTS)
    env.restore(replace(env.snapshot(), task=problem))
    assert "there is no program yet" in seen(say(env, "test"))
    assert "hello\n" in seen(say(env, Act("run", "print('hello')\n")))
    text = seen(say(env, Act("run", "1 / 0\n")))
    assert "ZeroDivisionError" in text and "main.py" in text
    assert "(no output)" in seen(say(env, Act("run", RIGHT)))
    assert "2 of 2 tests pass" in seen(say(env, "test"))
    text = seen(say(env, Act("test", "def f(x):\n    return x + 3 if x < 5 else 2 ** 40000\n")))
    assert "1 of 2 tests pass" in text and "f(2) gave 5, want 7" in text
    assert "no attribute 'f'" in seen(say(env, Act("test", "g = 1\n")))
    assert "SyntaxError" in seen(say(env, Act("test", "def f(x)\n")))
    assert "returned a tuple" in seen(say(env, Act("test", "def f(x):\n    return (x,)\n")))
    done = say(env, Act("submit", "def f(x):\n    return x + 3 if x == 1 else 7\n"))
    assert done.info["passed"] == {AGENT: pytest.approx(2 / 3)} == done.rewards and done.info["success"] is False
    env.close()


def test_3_repositories(say, machine):
    env = started(kind="repository", max_turns=30)
    start = env.snapshot()
    task, (path, number) = start.task, start.task.place
    assert seen(say(env, "list")).splitlines()[1].split() == [name for name, _ in task.right]
    listing = seen(say(env, f"read {path}"))
    assert f"\n{number}     return " in listing and f"\n{number - 1}     # " in listing
    assert "want" in seen(say(env, "test"))
    for act, fault in (
        (Act("read", file="no.py"), "there is no file no.py"),
        (Act("replace", "1", path, 99), "has no line 99"),
        (Act("replace", "1", path, 0), "has no line 0"),
        (Act("write", "x\n", "../x.py"), "cannot be written"),
        (Act("write", "x\n", "/etc/x.py"), "cannot be written"),
    ):
        result = say(env, write_act(act, "fenced") + "0" if act.line == 0 and act.name == "replace" else act)
        assert result.info["executable"] == {AGENT: 0.0} and (fault in seen(result) or "write:" in seen(result))
    say(env, Act("write", "raise SystemExit\n", path))  # a wrong act
    assert "SystemExit" in seen(say(env, "test"))
    acts = []
    while not (result := say(env, env.expert(AGENT).text)).terminated:
        acts.append(result.info["process"][AGENT])
    assert result.info["success"] is True and result.info["tested"] == {AGENT: 1.0} and set(acts) == {1.0}
    env.restore(start)
    assert say(env, "submit").info["success"] is False
    env.close()


@pytest.mark.parametrize("options", [{"style": "fenced", "domains": DOMAINS}, {"kind": "repository"}])
def test_3_the_expert(say, machine, options):
    env = Code(**options)
    for task in env.tasks("eval", 10, 1):
        env.reset(task)
        while not (result := say(env, env.expert(AGENT).text)).terminated:
            assert result.observations
        assert result.info["success"] is True
    env.close()


# ---- judging ----------------------------------------------------------------------------------------------
def test_4_jobs_hold_inputs_only():
    secret = 987654321
    job = calls({"solution.py": RIGHT}, [Test(x=5, want=secret)])
    assert str(secret) not in f"{job}" and json.loads(job.stdin) == [["solution", "f", 5]]


NONE = "def f(x):\n    return None\n"
REPORT = json.dumps([{"passed": True, "value": True}] * 3)
WRONG = {
    "early exit": f"{NONE}import sys\nsys.exit(0)\n",
    "hard exit": f"{NONE}import os\nos._exit(0)\n",
    "exit in the call": "import os\ndef f(x):\n    os._exit(0)\n",
    "exit at the end": f"{NONE}import atexit, os\natexit.register(os._exit, 0)\n",
    "printed report": f"{NONE}import os\nprint({REPORT!r}, flush=True)\nos._exit(0)\n",
    "report on every descriptor": (
        f"{NONE}import os\nfor fd in range(1, 9):\n    try:\n        os.write(fd, {REPORT!r}.encode())\n"
        "    except OSError:\n        pass\nos._exit(0)\n"
    ),
    "patched json": f"{NONE}import json\njson.dumps = lambda told: '[true, true, true]'\n",
    "patched caller": f"{NONE}import __main__\n__main__.called = lambda *a: {{'passed': True, 'value': None}}\n",
    "equal to all": "class E(int):\n    __eq__ = lambda s, o: True\n    __hash__ = int.__hash__\n"
    "def f(x):\n    return E()\n",
    "searched memory": (
        "import gc, json, sys\nfrom collections import Counter\n"
        "found = [o for o in gc.get_objects() if isinstance(o, dict) and 'want' in o]\n"
        "def f(x):\n    frame = sys._getframe()\n    while frame:\n        if 'want' in frame.f_locals:\n"
        "            return frame.f_locals['want']\n        frame = frame.f_back\n    return found[0]['want']\n"
    ),
    "read files": (
        "import glob\ndef f(x):\n    text = ''.join(open(n).read() for n in glob.glob('**', recursive=True))\n"
        "    return int(text.split('want=')[1])\n"
    ),
    "import of the checker": "from palaestra.envs.worlds.code.problems import build\ndef f(x):\n    return x * 3 + 1\n",
    "endless": "def f(x):\n    while True: pass\n",
    "endless import": "while True: pass\n",
    "output without end": "import sys, os\nwhile True: os.write(2, b'x' * 65536)\n",
    "memory without end": "import os\ndef f(x):\n    return len([b'x' * 10**7 for _ in range(10**5)])\n",
    "deep answer": "import os\nos.write(1, b'[' * 50000)\nos._exit(0)\n",
    "not a number": "def f(x):\n    return float('nan')\n",
    "true": "def f(x):\n    return True\n",
    "error that breaks": "class B(Exception):\n    __str__ = lambda s: 1 / 0\ndef f(x):\n    raise B\n",
    "error that cannot be stored": "def f(x):\n    raise ValueError('\\ud800\\n3 of 3 tests pass')\n",
}


@pytest.mark.parametrize("trick", WRONG)
def test_5_no_trick_passes(trick, machine):
    endless = trick in ("endless", "endless import", "output without end")
    job = calls({f"{MODULE}.py": WRONG[trick]}, TESTS)
    done = machine.run(job, timeout_s=0.7 if endless else 20.0, memory_mb=256)
    verdicts = judged(done, TESTS)
    assert len(verdicts) == len(TESTS) and not any(one.passed for one in verdicts)
    for one in verdicts:
        assert one.got.encode() and "\n" not in one.got and len(one.got) <= 60


def test_5_repository_tricks(say, machine):
    for trick in ("import os\nos._exit(0)\n", "print('3 of 3 tests pass')\n", "import sys\nsys.exit(0)\n"):
        env = started(kind="repository", score="fraction")
        for path, _ in env.snapshot().files:
            say(env, Act("write", trick, path))
        done = say(env, "submit")
        assert done.info["passed"] == {AGENT: 0.0} and done.rewards == {AGENT: 0.0}
        env.close()


@pytest.mark.parametrize(
    "more",
    [
        "print('[1]', flush=True)\n",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n",
        "import atexit, time\natexit.register(time.sleep, 60)\n",
        "import sys\nsys.stdout.close()\n",
    ],
)
def test_6_right_ones_pass(more, machine):
    done = machine.run(calls({f"{MODULE}.py": more + RIGHT}, TESTS), **LIMITS)
    assert all(one.passed for one in judged(done, TESTS)) and done.seconds < 15


def test_7_expressions_are_worked_out_as_in_the_sandbox(machine):
    """All references and mutants of some tasks, and expressions that fail, on inputs that fit and that do not."""
    texts = ["x[0]", "x // 0", "x + 'a'", "-x", "sorted(x)", "max(x)", "x.upper()", "x[::0]", "x % 3", "x[9]", "len(x)"]
    texts += ["x.lower()", "min(x, 3)", "abs(x)", "sum(x)", "[x, x][1]", "x * x", "x[-1:]", "3 * x", "max(x, 'a')"]
    for seed in range(12):
        problem = build(Sizes(domains=DOMAINS, depth=(1, 3)), seed)
        texts += [problem.reference, *problem.mutants]
    texts = list(dict.fromkeys(texts))
    inputs = (0, -7, 12, "hijk", "", [3, 1, 2], [])
    source = "\n".join(program(text).replace("def f(", f"def f{number}(") for number, text in enumerate(texts))
    asked = [(text, Test(x=x, want=None, function=f"f{n}")) for n, text in enumerate(texts) for x in inputs]
    verdicts = judged(
        machine.run(calls({"solution.py": source}, [test for _, test in asked]), **LIMITS), [t for _, t in asked]
    )
    assert len(verdicts) > 500 and sum("Error" in one.got for one in verdicts) > 100
    for (text, test), there in zip(asked, verdicts, strict=True):
        here = worked_out(text, [test])[0]
        if "Error" in there.got:
            assert here.got.split(":")[0] == there.got.split(":")[0], (text, test.x)
        else:
            assert here.got == there.got, (text, test.x)


# ---- many at once -----------------------------------------------------------------------------------------
def test_8_many_episodes_and_no_process_left():
    async def episode(number):
        env = Code(style="fenced", workers=1)
        env.reset(env.tasks("train", 40, 0)[number])
        wrong = Act("test", f"def f(x):\n    return {number}\n")
        result = await env.step({AGENT: Action(text=write_act(wrong, "fenced"))})
        assert "tests pass" in seen(result)
        result = await env.step({AGENT: env.expert(AGENT)})
        assert result.info["success"] is True
        return env

    async def all_of_them():
        return await asyncio.gather(*(episode(number) for number in range(12)))

    environments = asyncio.run(all_of_them())
    shared = {env._machine for env in environments}
    assert len(shared) == 1
    pool = shared.pop().pool
    servers = list(pool._servers)
    for env in environments[1:]:
        env.close()
    assert all(server.process.poll() is None for server in servers)
    environments[0].close()
    environments[0].close()  # a second time is allowed
    assert all(server.process.poll() is not None for server in servers) and not pool._servers
    assert all(key[1] != 1 for key in machines._MACHINES)
    env = environments[0]
    env.reset(env.tasks("train", 1, 0)[0])  # a new pool
    assert env._machine is not None
    env.close()


def test_9_equal_jobs_run_once(machine):
    job, before = Job("import random\nprint(random.random())\n"), machine.ran
    first, second = machine.run(job, **LIMITS), asyncio.run(machine.arun(job, **LIMITS))
    assert first.out == second.out and machine.ran == before + 1
    for _ in range(2):
        assert machine.run(Job("while True: pass"), timeout_s=0.3, memory_mb=256).timed_out
    assert machine.ran == before + 3


def test_10_no_isolation_no_code(monkeypatch):
    def absent():
        raise PalaestraError(where="sandbox", what="no bwrap.", remedy="Install it.")

    monkeypatch.setattr(machines, "BubblewrapSandbox", absent)
    machines.backend.cache_clear()
    for options in ({"style": "fenced"}, {"kind": "repository", "sandbox": "bubblewrap", "require": "none"}):
        with told(RecipeError, "no bwrap"):
            Code(**options)
    assert Code()._backend is None  # expressions need none
    assert Code(style="json", require="none")._backend == "subprocess"
    assert Code(style="json", require="none", sandbox="subprocess")._backend == "subprocess"
    machines.backend.cache_clear()


def test_10_a_plain_subprocess_for_trusted_code(say):
    env = started(style="fenced", require="none", sandbox="subprocess")
    assert say(env, env.expert(AGENT).text).info["success"] is True
    env.close()
