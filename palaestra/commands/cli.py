"""The command line: the name, the arguments and the help of each command. The code of the commands is in `commands/`.

This module does not import torch, so `--help` answers at once. The module of a command is loaded when it runs.
"""

from __future__ import annotations

import atexit
import importlib
import os
import re
import sys
import time
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

import palaestra
from palaestra.errors import MissingExtra, PalaestraError, RankError, out_of_memory
from palaestra.process.interruption import Stopped, exits_refused, ignore_late, stoppable
from palaestra.process.terminal import (
    is_gone,
    make_ready,
    no_room,
    output_fault,
    print_elsewhere,
    reader_is_gone,
    say,
    visible,
)
from palaestra.registry.trust import trusting

app = typer.Typer(
    name="palaestra",
    help="Train, run and evaluate agents by multi-turn reinforcement learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Layers = Annotated[
    list[str],
    typer.Argument(
        help="Recipe files, layered left to right, and overrides such as `rollout.group=16`. `chat` after a recipe "
        "fits a pretrained model into it."
    ),
]
Smoke = Annotated[
    bool, typer.Option("--smoke", help="A quick, small run in runs/smoke/NAME that checks whether everything works.")
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Import code of a run that was not made here, or inside a run folder.")
]
STOPPED, MISSING = 130, 1  # exit codes: after Ctrl-C; if an optional package is not installed
GONE = 141  # exit code: the reader of the output ended before the command, as after SIGPIPE
TURN_S = 20.0  # seconds, longer than a process needs to end on a busy machine
OWN_MODULE = "palaestra_user_"  # names of the modules of the user's files begin with this
PACKAGE = os.path.dirname(os.path.abspath(palaestra.__file__)) + os.sep
OWN_SIGNALS = ("serve",)  # commands that answer signals themselves; all others end in order
GO_ON = {
    "train": "the same command with `--resume` continues from the newest checkpoint, if one was written",
    "compare": "the same command continues where it stopped",
}
FREE = {"allow_extra_args": False, "ignore_unknown_options": False}


def _stopped(remedy: str) -> str:
    return f"stopped; {remedy}" if remedy else "stopped"


def _command(module: str, *, trust: bool = False, **arguments: Any) -> None:
    with trusting(trust), exits_refused(), nullcontext() if module in OWN_SIGNALS else stoppable() as interruption:
        try:
            status = importlib.import_module(f"palaestra.commands.{module}").run(**arguments)
        except KeyboardInterrupt as stop:
            status = stop.status if isinstance(stop, Stopped) else STOPPED
            if not getattr(stop, "silent", False):  # one process of a run speaks
                say(f"\n{_stopped(getattr(stop, 'remedy', '') or GO_ON.get(module, ''))}")
            raise typer.Exit(status) from None
        except BrokenPipeError:
            if not reader_is_gone():
                raise
            output_fault()
            raise typer.Exit(GONE) from None
        except Exception as error:
            if interruption is not None and interruption.received is not None:
                # A library has caught the exception of the signal, such as while it imports, and has failed later.
                text = error.render() if isinstance(error, PalaestraError) else f"{type(error).__name__}: {error}"
                say(f"\n{_stopped(GO_ON.get(module, ''))}\n\n  After the signal came: {visible(text)}")
                raise typer.Exit(128 + interruption.received) from None
            if not out_of_memory(error) or isinstance(error, PalaestraError):
                raise
            raise _no_memory(error, GO_ON.get(module, "")) from error
    if status:
        raise typer.Exit(status)


@app.command(context_settings=FREE)
def train(
    recipe: Layers,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that is in the folder.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the recipe, as `explain` does.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the result.")] = False,
    smoke: Smoke = False,
    trust: Trust = False,
) -> None:
    """Train a recipe. The last line of the output is the result of the evaluation."""
    if dry_run:
        _command("explain", trust=trust, recipe=recipe, smoke=smoke)
        return
    _command("train", trust=trust, recipe=recipe, resume=resume, overwrite=overwrite, quiet=quiet, smoke=smoke)


@app.command(name="run", context_settings=FREE)
def run_system(
    recipe: Layers,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the result.")] = False,
    smoke: Smoke = False,
    trust: Trust = False,
) -> None:
    """Play a system that is not trained, such as `self_consistency`, and its baselines on the evaluation tasks."""
    _command("run", trust=trust, recipe=recipe, quiet=quiet, smoke=smoke)


Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        help="Who plays: expert, random, a model folder or name, an adapter, a run folder, an address such as "
        "http://127.0.0.1:8000/v1; NAME=… replaces one policy of the recipe. May be repeated.",
    ),
]
Model = Annotated[str | None, typer.Option(help="The model at the address; default: the only one.")]
Key = Annotated[str | None, typer.Option(help="The environment variable with the key for the address.")]
Style = Annotated[str, typer.Option(help="The protocol of the address: openai or anthropic.")]
Temperature = Annotated[float | None, typer.Option(help="Of sampling; default: as the recipe says.", min=0.0)]


@app.command(name="eval")
def evaluate(
    recipe: Layers,
    policy: Policies = None,
    model: Model = None,
    key: Key = None,
    style: Style = "openai",
    checkpoint: Annotated[int | None, typer.Option(help="Iteration of the checkpoint; default: the newest.")] = None,
    samples: Annotated[int, typer.Option(help="Episodes of each task, for avg@k and pass@k.", min=1)] = 1,
    temperature: Temperature = None,
    tasks: Annotated[int | None, typer.Option(help="Number of tasks; default: as the recipe says.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="Of what is sampled; the tasks stay. Default: the recipe's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    out: Annotated[Path | None, typer.Option(help="A file for the same JSON object.")] = None,
    episodes: Annotated[
        Path | None, typer.Option(help="Write the episodes to trajectories.jsonl in this folder.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Evaluate a run folder, or a recipe before training, or other policies on its evaluation tasks."""
    wanted = {"policies": tuple(policy or ()), "model": model, "key": key, "style": style, "checkpoint": checkpoint,
              "samples": samples, "temperature": temperature, "tasks": tasks, "seed": seed}  # fmt: skip
    try:
        _command("evaluate", trust=trust, recipe=recipe, wanted=wanted, episodes=episodes, as_json=as_json, out=out)
    finally:
        if as_json and sys.stdout is sys.__stdout__:
            print_elsewhere()  # code of a user may print while Python ends


@app.command()
def play(
    environment: Annotated[str, typer.Argument(help="An environment's name, a recipe, or a run folder.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Options, such as `level=GoToObj`.")] = None,
    policy: Policies = None,
    model: Model = None,
    key: Key = None,
    style: Style = "openai",
    temperature: Temperature = None,
    seed: Annotated[int, typer.Option(help="Seed of the tasks.")] = 0,
    episodes: Annotated[int, typer.Option(help="Number of episodes.", min=1)] = 1,
    trust: Trust = False,
) -> None:
    """Play an environment in the terminal, or watch a policy play it."""
    players = {"policies": tuple(policy or ()), "model": model, "key": key, "style": style}
    _command("play", environment=environment, overrides=overrides or [], players=players, temperature=temperature,
             seed=seed, episodes=episodes, trust=trust)  # fmt: skip


@app.command()
def compare(
    setup: Annotated[str, typer.Argument(help="The recipe that all arms share.")],
    methods: Annotated[
        list[str] | None, typer.Argument(help="Method recipes, one arm each, and overrides for all arms.")
    ] = None,
    arm: Annotated[
        list[str] | None, typer.Option(help='A further arm, "name: method.yaml key=value …"; may be repeated.')
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds of each arm.", min=1)] = 5,
    out: Annotated[str, typer.Option(help="Folder for runs, JSON, table and plot.")] = "runs/compare",
    parallel: Annotated[int, typer.Option(help="Runs at the same time.", min=1)] = 1,
    reference: Annotated[str | None, typer.Option(help="The arm to compare with; default: the first.")] = None,
    metric: Annotated[str, typer.Option(help="success or return.")] = "success",
    axis: Annotated[
        str, typer.Option(help="What the budget counts: environment_steps, tokens (generated), updates or step.")
    ] = "environment_steps",
) -> None:
    """Compare methods on one setup at equal budget, with several seeds and intervals. It can be resumed."""
    _command(
        "compare", setup=setup, methods=methods or [], arms=arm or [], seeds=seeds, out=out, parallel=parallel,
        reference=reference, metric=metric, axis=axis,
    )  # fmt: skip


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="A run folder.")],
    out: Annotated[str, typer.Argument(help="The folder to write.")],
    policy: Annotated[str | None, typer.Option(help="Name of the policy, if there are several.")] = None,
    checkpoint: Annotated[int | None, typer.Option(help="Iteration of the checkpoint; default: the newest.")] = None,
    trust: Trust = False,
) -> None:
    """Write a trained policy as a Hugging Face folder. A network policy becomes safetensors and JSON."""
    _command("export", trust=trust, folder=run, out=out, policy=policy, checkpoint=checkpoint)


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="A run folder, a model folder or name, or an adapter's folder.")],
    host: Annotated[str, typer.Option(help="Other machines reach it only with a secret, see the docs.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free port.", min=0, max=65535)] = 8000,
    policy: Annotated[str | None, typer.Option(help="Of a run; default: all that write tokens.")] = None,
    checkpoint: Annotated[int | None, typer.Option(help="Iteration of the checkpoint; default: the newest.")] = None,
    base: Annotated[str | None, typer.Option(help="The model below an adapter's folder.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model in requests; default: its own.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, or auto for the faster one.")] = "float32",
    memory: Annotated[str | None, typer.Option(help="Most memory of keys and values, such as 4GB.")] = None,
    max_sessions: Annotated[int, typer.Option(help="Requests that are answered at once.", min=1)] = 256,
    max_waiting: Annotated[int, typer.Option(help="Requests that wait for that; more get status 429.", min=0)] = 1024,
    max_length: Annotated[int | None, typer.Option(help="Most ids of a chat; default: the model's context.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Of a reply whose request names no limit.", min=1)] = 1024,
    max_seconds: Annotated[float, typer.Option(help="Of one request.", min=0.1)] = 600.0,
    max_body: Annotated[int, typer.Option(help="Bytes of one request.", min=1)] = 16 * 2**20,
    max_bodies: Annotated[int, typer.Option(help="Bytes of all requests at once; others wait.", min=1)] = 256 * 2**20,
    trust: Trust = False,
) -> None:
    """Serve a policy by OpenAI's protocol: chats with streams and tools, and completions."""
    limits = {"running": max_sessions, "waiting": max_waiting, "seconds": max_seconds, "body_bytes": max_body}
    limits["held_bytes"] = max_bodies
    _command(
        "serve", model=model, host=host, port=port, policy=policy, checkpoint=checkpoint, base=base, name=name,
        device=device, dtype=dtype, memory=memory, max_length=max_length, max_tokens=max_tokens, limits=limits,
        trust=trust,
    )  # fmt: skip


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="A system, an alias or an arXiv number; default: all.")] = None,
    find: Annotated[str | None, typer.Option(help="Only systems whose texts hold these words.")] = None,
    family: Annotated[str | None, typer.Option(help="Only systems of this family, such as credit.")] = None,
    status: Annotated[bool, typer.Option("--status", help="Count them by how far they go.")] = False,
    slot: Annotated[str | None, typer.Option(help="List the parts of this slot.")] = None,
    without: Annotated[str | None, typer.Option(help="List parts that do not need this column or ability.")] = None,
) -> None:
    """List systems, or describe one: formula, parts with their options, studies, commands."""
    _command("methods", name=name, find=find, family=family, status=status, slot=slot, without=without)


@app.command()
def envs(
    name: Annotated[str | None, typer.Argument(help="An environment; default: all.")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="Options for the check.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Run the validity check of this environment.")] = False,
) -> None:
    """List environments, describe one, or check one."""
    if not check:
        _command("environments", name=name)
        return
    if name is None:
        raise typer.BadParameter("--check needs the name of an environment: palaestra envs NAME --check")
    _command("check", environment=name, overrides=overrides or [])


@app.command()
def explain(recipe: Layers, smoke: Smoke = False, trust: Trust = False) -> None:
    """Show every value that has an effect, with its origin, of a recipe, a system or a run folder.

    Keys, parts and options are checked. Nothing is started, so the roles of the program are checked only by a run. Code
    of your own is read, not imported; `--trust` imports it.
    """
    _command("explain", trust=trust, recipe=recipe, smoke=smoke)


@app.command()
def plan(recipe: Layers, smoke: Smoke = False, trust: Trust = False) -> None:
    """Show the memory that a recipe needs: weights, training, one pass of an update, and the cache. Nothing starts."""
    _command("plan", trust=trust, recipe=recipe, smoke=smoke)


@app.command()
def show(recipe: Layers, smoke: Smoke = False, trust: Trust = False) -> None:
    """Show the first prompt of each role as text and as ids, its tools, and how its reply is read."""
    _command("show", trust=trust, recipe=recipe, smoke=smoke)


@app.command()
def recipes() -> None:
    """List the recipes of Palaestra: what each trains, on what, how long it takes and what it needs."""
    _command("recipes")


@app.command()
def init(
    folder: Annotated[str, typer.Argument(help="The folder to write; it is created if it is missing.")] = "guess",
) -> None:
    """Write an environment, a reward and a recipe to start from. The recipe can be trained at once."""
    _command("init", folder=folder)


@app.command()
def model(
    out: Annotated[
        str | None, typer.Option(help="The folder to write; default: where recipes find it by name.")
    ] = None,
) -> None:
    """Fetch the pretrained model of the examples, SmolLM2-135M-Instruct. It takes half a minute, and only once."""
    _command("model", out=out)


@app.command()
def doctor() -> None:
    """Show what is installed, what each missing extra would add, the device and the sandbox level."""
    _command("doctor")


def main() -> None:
    """The entry point. Errors that a user can correct are printed without a traceback."""
    make_ready()
    status = _run()
    atexit.register(ignore_late)
    fault = output_fault()
    if fault is not None and not is_gone(fault):
        say(f"\nstandard output\n\n  it cannot be written: {fault.strerror}.\n")
        status = status or 2
    sys.exit(status)


def _run() -> int:
    """Run the command line.

    Returns: the exit code: 0; 1 if an optional package is not installed; 2 for other errors that a user can correct;
        130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, 141 if nobody reads the output any more.
    """
    try:
        code = app(prog_name="palaestra", standalone_mode=False) or 0  # Typer returns 130 for Ctrl-C
    except (KeyboardInterrupt, typer.Abort):
        code = STOPPED
    except Exception as error:
        _wait_for_its_turn(error)
        message = _message(error) if _mendable(error) else _own_fault(error) or _of_output(error)
        if os.environ.get("PALAESTRA_TRACEBACK") or message is None:
            raise
        say(f"\n{visible(message)}\n")
        return MISSING if isinstance(error, MissingExtra) else 2
    return int(code)


def _wait_for_its_turn(error: Exception) -> None:
    """Let the process with the cause of a failure speak first, if several processes train one run.

    The first rank speaks at once, then a rank that has failed by itself, then one that has lost another. torchrun ends
    those that still wait.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        time.sleep(3 * TURN_S if isinstance(error, RankError) else TURN_S if os.environ.get("RANK", "0") != "0" else 0)


def _no_memory(error: Exception, go_on: str) -> PalaestraError:
    """The message for memory that ran out while a command was at work. go_on: how its work continues, as in `GO_ON`."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    remedy = "Lower `training.token_budget` or `rollout.in_flight`, or end other programs."
    after = f"\nAfterwards {go_on}." if go_on else ""
    return PalaestraError(where="memory", what=f"there is not enough of it: {said}", remedy=remedy + after)


def _of_output(error: Exception) -> str | None:
    """The message for an error of the standard output, such as a full disk; None, if the error comes from elsewhere."""
    if not isinstance(error, OSError):
        return None
    fault = output_fault() or (error if no_room(error) else None)
    return None if fault is None else f"standard output\n\n  it cannot be written: {fault.strerror}."


def _mendable(error: Exception) -> bool:
    return isinstance(error, PalaestraError) or hasattr(error, "format_message")


def _message(error: Any) -> str:
    if isinstance(error, PalaestraError):
        return error.render()
    path = getattr(getattr(error, "ctx", None), "command_path", "palaestra")
    return f"{error.format_message()}\n\n  `{path} --help` shows its arguments."


def _own_fault(error: Exception) -> str | None:
    """The message for an error in a user's file; None, if the error comes from elsewhere.

    It comes from a user's file if no frame of this package is deeper in the traceback than the last frame of that file,
    or if a function of that file does not take the arguments of the call.
    """
    newest = list(sys.modules.copy().items())[::-1]
    loaded = [(name, file, module) for name, module in newest if (file := _file_of(module))]
    folders = {os.path.dirname(file) for name, file, _ in loaded if name.startswith(OWN_MODULE)}
    beside = [each for each in loaded if os.path.dirname(each[1]) in folders]
    beside.sort(key=lambda each: not each[0].startswith(OWN_MODULE))  # first the files that the recipe names
    own = {file: module for _, file, module in beside}
    frames = traceback.extract_tb(error.__traceback__)
    last = max((place for place, frame in enumerate(frames) if frame.filename in own), default=None)
    called = re.match(r"(\w+)[\w.<>]*\(\)", str(error)) if isinstance(error, TypeError) else None
    if last is not None and not any(frame.filename.startswith(PACKAGE) for frame in frames[last:]):
        where = f"{os.path.relpath(frames[last].filename)}, line {frames[last].lineno}"
    elif called and any(hasattr(module, called[1]) for module in own.values()):
        where = next(os.path.relpath(file) for file, module in own.items() if hasattr(module, called[1]))
    else:
        return None
    what = f"{type(error).__name__}: {error}"
    return f"{where}\n\n  {what}\n\n  Correct the file. PALAESTRA_TRACEBACK=1 shows the whole traceback."


def _file_of(module: Any) -> str:
    return getattr(module, "__file__", None) or ""


def version(show: bool) -> None:
    """Print the version and exit."""
    if show:
        print(palaestra.__version__)
        raise typer.Exit


@app.callback()
def _options(
    show: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Train, run and evaluate agents by multi-turn reinforcement learning."""
