"""`palaestra model`: fetches the pretrained model of the examples, SmolLM2-135M-Instruct."""

from __future__ import annotations

from pathlib import Path

from palaestra.models.pretrained import SMOLLM2, fetch_smollm2, models_folder


def run(*, out: str | None) -> None:
    """Write the model into `out`, or into the folder where recipes find it by name. A model that is there stays.

    Raises: CheckpointError, if it cannot be downloaded; MissingExtra, without gguf.
    """
    folder = Path(out) if out else models_folder() / SMOLLM2
    if not (folder / "config.json").is_file():
        print(f"fetching {SMOLLM2}: a download of 93 MB, and 540 MB in the folder", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        fetch_smollm2(folder)
    print(f"{folder}\n\nUse it in a recipe: policies: {{main: {{policy: {{language: {{model: {out or SMOLLM2}}}}}}}}}")
