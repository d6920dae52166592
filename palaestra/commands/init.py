"""`palaestra init`: write an environment, a reward and a recipe that train at once, for users to begin from."""

from __future__ import annotations

from pathlib import Path

from palaestra.errors import RunFolderError
from palaestra.recipe.sources import COMPLETE, recipes_folder
from palaestra.store.atomic import write_atomic

EXAMPLE = "guess"  # a folder of `recipes/`; the tutorial "Your own environment" shows its files
FILES = {"guess.py": "an environment", "rewards.py": "a reward", COMPLETE: "what is trained, and how"}


def run(*, folder: str) -> None:
    """Write the files of the example into a folder, which is made if it is missing.

    Raises: RunFolderError, if one of them is there already, or the place cannot be written.
    """
    root, place = recipes_folder(), Path(folder)
    assert root is not None, "recipes come with the package"
    for name in FILES:
        if (place / name).exists():
            raise RunFolderError(
                where=str(place / name), what="it is there already.", remedy="Name another folder, or remove the file."
            )
    for name, what in FILES.items():
        write_atomic(place / name, (root / EXAMPLE / name).read_text(encoding="utf-8"))
        print(f"{place / name}  {what}")
    print(f"\nTrain it: palaestra train {place / COMPLETE}")
