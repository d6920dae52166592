"""`palaestra explain`: prints every resolved value of a recipe with its origin. It starts no run."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.commands.runs import resolve
from palaestra.models.devices import run_device
from palaestra.process.terminal import visible
from palaestra.recipe import Recipe
from palaestra.recipe.passes import lines, planned_passes
from palaestra.registry.signatures import signatures_only
from palaestra.registry.trust import trusts
from palaestra.training.checkpoint import changes
from palaestra.training.preflight import check_start


def run(*, recipe: Sequence[str], smoke: bool = False) -> None:
    """Check a recipe and print it, then its passes. With `smoke`, also print what the smoke run changes.

    Code of the user is read and not imported, unless the user trusts it.
    """
    with signatures_only(not trusts()) as unread:
        _show(recipe, smoke)
    for name, known in unread.items():
        what = "What else it is and does is not checked. `--trust` imports it."
        print(f"\nnot imported: {visible(name)}; {known}. {what}")


def _show(recipe: Sequence[str], smoke: bool) -> None:
    found = resolve(recipe, smoke=smoke)
    run_device(found.settings.device)
    checked = check_start(found.settings, found.to_json())
    print(visible(found.explain()))
    if smoke:
        print("\nthe smoke changes\n" + "\n".join(f"  {visible(line)}" for line in _changed(recipe, found)))
    print("\n" + visible("\n".join(lines(planned_passes(found.settings, found.parts)))))
    if checked.notes:
        print("\n" + visible("\n".join(checked.notes)))


def _changed(recipe: Sequence[str], smoke: Recipe) -> list[str]:
    return changes(resolve(recipe).to_json(), smoke.to_json()) or ["nothing"]
