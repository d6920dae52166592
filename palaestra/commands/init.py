"""`palaestra init`: writes an environment, a reward and a recipe as a start for the user's own. They train at once."""

from __future__ import annotations

from pathlib import Path

from palaestra.errors import RunFolderError
from palaestra.recipe.sources import COMPLETE, recipes_folder
from palaestra.store.atomic import write_atomic

EXAMPLE = "guess"  # a folder of `recipes/`, shown in the tutorial on environments
FILES = {"guess.py": "an environment", "rewards.py": "a reward", COMPLETE: "what is trained, and how"}


def run(*, folder: str) -> None:
    """Write the files of the example into a folder. A missing folder is made.

    Raises: RunFolderError, if one of the files exists already or cannot be written.
    """
    root, place = recipes_folder(), Path(folder)
    assert root is not None, "recipes come with the package"
    for name in FILES:
        if (place / name).exists():
            raise RunFolderError(
                where=str(place / name), what="this file exists.", remedy="Name another folder, or remove the file."
            )
    for name, what in FILES.items():
        text = (root / EXAMPLE / name).read_text(encoding="utf-8")
        write_atomic(place / name, text.replace(f"name: {EXAMPLE}\n", f"name: {place.resolve().name}\n"))
        print(f"{place / name}  {what}")
    print(f"\nTrain it: palaestra train {place / COMPLETE}")
