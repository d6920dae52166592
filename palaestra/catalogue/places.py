"""Where the files lie that belong to the package but are no code.

Knows two layouts: a source checkout, where `recipes/` and `catalogue.yaml` stand beside the package, and an
installed wheel, where they stand inside it. Knows nothing of what the files say.
"""

from __future__ import annotations

from pathlib import Path

from palaestra.errors import PalaestraError, UnknownName, nearest

PACKAGE = Path(__file__).resolve().parent.parent
CHECKOUT = PACKAGE.parent


def resource(path: str | Path) -> Path:
    """The file or folder of this name that comes with Palaestra.

    Args:
        path: relative, as in the source checkout: "recipes/methods/gigpo.yaml", "catalogue.yaml",
            "envs/panels.json".

    Raises: UnknownName, with the nearest names of the same folder.
    """
    for root in (PACKAGE, CHECKOUT):
        if (root / path).exists():
            return root / path
    folders = [(root / path).parent for root in (PACKAGE, CHECKOUT)]
    names = [entry.name for folder in folders if folder.is_dir() for entry in folder.iterdir()]
    raise UnknownName(
        where=f"resource({str(path)!r})",
        what=f"Palaestra comes with no file `{path}`.",
        options=nearest(Path(path).name, names),
    )


def checkout() -> Path:
    """The root of the source checkout, whose documentation is generated.

    Raises: PalaestraError, if the package was installed as a wheel.
    """
    if not (CHECKOUT / "pyproject.toml").exists():
        raise PalaestraError(
            where="palaestra docs",
            what=f"the package was installed without its documentation ({PACKAGE}).",
            remedy="Run it in a source checkout: `make install`, then `palaestra docs`.",
        )
    return CHECKOUT
