"""`load` reads a recipe: it merges the layers of sources (`layers.py`), applies overrides, and resolves the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from palaestra.errors import RecipeError
from palaestra.recipe.beside import SMOKE, apart, baselines
from palaestra.recipe.chat import fitted
from palaestra.recipe.layers import merge
from palaestra.recipe.origins import Mark, Node, as_layer
from palaestra.recipe.resolved import Recipe, overridden, resolve
from palaestra.recipe.smoke import small
from palaestra.recipe.sources import CHAT, Source, read_layers


def load(sources: Sequence[Source], overrides: Sequence[str] = (), *, smoke: bool = False) -> Recipe:
    """Merge sources from left to right, apply overrides, and check all that can be checked before the run.

    Args:
        sources: paths, names of packaged recipes (`gigpo`, `gigpo/method.yaml`), mappings, or `chat`, which fits a
            pretrained model into the sources before it (`palaestra.recipe.chat`). Later sources win, and a source wins
            over those that its key `extends` names.
        overrides: such as `rollout.group=16`; the value is YAML.
        smoke: make everything small (`palaestra.recipe.smoke`).

    Raises: RecipeError or UnknownName, with file and line of the value; MissingExtra.
    """
    trees = [tree for source in sources for tree in read_layers(source)]
    trees = [as_layer(tree, number) for number, tree in enumerate(trees)]
    top = Mark(" + ".join(tree.mark.source for tree in trees) or "recipe")
    split = [apart(tree) for tree in trees]
    beside = [sections for _, sections in split]
    layers = [*(tree for tree, _ in split), *(found[SMOKE] for found in beside if smoke and SMOKE in found)]
    recipe = resolve(overridden(Node(reduce(_laid, layers, Node({}, top)).value, top), overrides))
    recipe = replace(recipe, baselines=baselines(beside))
    return smoked(recipe) if smoke else recipe


def smoked(recipe: Recipe) -> Recipe:
    """The same recipe with everything small, by the rule of `palaestra.recipe.smoke`. Raises: as `load`."""
    return replace(resolve(small(recipe)), baselines=recipe.baselines)


def _laid(former: Node, latter: Node) -> Node:
    """Lay a layer over the former ones. The layer `chat` is computed from them."""
    if latter.value != CHAT:
        return merge(former, latter)
    if not former.value:
        raise RecipeError(
            where=CHAT,
            what="it fits a pretrained model into the recipe that stands before it, and there is none.",
            remedy=f"Name the recipe first: `gigpo {CHAT}`.",
        )
    return fitted(resolve(former), latter.mark.layer)
