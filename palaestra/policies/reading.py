"""How a language policy reads: its renderer, which reads images if the model and its folder allow it."""

from __future__ import annotations

from typing import Any

from palaestra.chat import renderer_for
from palaestra.chat.renderers import Renderer, end_ids, has_tags
from palaestra.chat.tags import BLIND
from palaestra.errors import RecipeError
from palaestra.models.pictures import NoPictures, PictureReader
from palaestra.models.pretrained import located
from palaestra.models.tokenizer import load_tokenizer


def renderer_of(
    name: str, model: str | None, causal: Any, tokenizer: Any, pictures: bool | None, *, limit: int
) -> Renderer:
    """The renderer, which reads images if the model and its folder allow it.

    Args:
        limit: the most ids of a prompt.

    Raises: RecipeError, if `pictures` is true and it cannot.
    """
    reader, blind = None, BLIND
    if pictures is False:
        blind = "`pictures` of the policy is false"
    elif model is not None:
        try:
            reader = PictureReader(model, tokenizer, causal)
        except NoPictures as reason:
            blind = str(reason)
    if reader is not None and reader.template is not None:
        tokenizer.chat_template = reader.template
    made = renderer_for(tokenizer, stop=end_ids(causal), pictures=reader, blind=blind)
    made.encoder.limit = limit
    if pictures and made.pictures is None:
        raise RecipeError(
            where=f"policies.{name}.policy.language.pictures",
            what=f"the policy cannot read pictures: {made.blind}.",
            remedy="Leave it out: the policy then reads texts alone. Or use another vision–language model.",
        )
    return made


def template_fault(model: str | None) -> str | None:
    """Why no chat template writes the prompts of this model; None, if one does.

    Args:
        model: as the policy `language` names it; None: it is made on the spot.
    """
    if model is None:
        return "is made on the spot and has none"
    return "has a tokenizer with tags instead" if has_tags(load_tokenizer(located(model))) else None
