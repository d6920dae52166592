"""Pictures for vision–language models: a model's processor turns an image into ids and numbers, its tower into states.

The ids of a picture are placeholders. The model reads, in place of their embeddings, the states that its vision tower
and projector give for the image. Engine, trainer and start check take both from here, so they agree.
"""

from __future__ import annotations

import inspect
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from torch import Tensor
from transformers.utils import cached_file

from palaestra.data.trajectory import Picture, digest_of
from palaestra.errors import ContractError, EpisodeFailure
from palaestra.models.own_head import base_of
from palaestra.models.pretrained import config_of

# The files of a model's folder that say how it reads pictures. They are copied as they are when the model is saved.
FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json", "chat_template.json")
OF_TEXT = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids", "text_replacement_offsets")
KEPT_BYTES = 256 * 2**20  # of what the processor made of images; the images used longest ago are forgotten first
CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}


class NoPictures(Exception):
    """A model, or its folder, cannot read pictures here. The text says why."""


@dataclass(frozen=True, slots=True)
class Read:
    """What a processor makes of one image.

    Attributes:
        text: replaces the placeholder that the chat template writes.
        count: how many ids of `text` are placeholders of the image.
        inputs: tensors for the model's vision tower.
    """

    text: str
    count: int
    inputs: Mapping[str, Tensor]


class PictureReader:
    """Reads images as one model's processor does.

    Attributes:
        token: what the chat template writes for an image. mark: the token that stands for the image after it was
            expanded, often the same. token_id: its id.
        template: the chat template of the processor; None: that of the tokenizer.
    """

    def __init__(self, place: str, tokenizer: Any, model: Any) -> None:
        """
        Args:
            place: folder or id of the model, on this machine.
            tokenizer: of the model.
            model: a model of transformers.

        Raises: NoPictures, which says why this model or folder cannot be read.
        """
        base: Any = base_of(model)
        if not callable(getattr(base, "get_image_features", None)):
            raise NoPictures(f"{type(model).__name__} reads no pictures")
        known = inspect.signature(base.forward).parameters
        if "token_type_ids" in known:
            raise NoPictures(
                f"{type(model).__name__} reads the tokens of a picture in both directions, and the engine and the "
                "trainer read tokens from left to right"
            )
        if getattr(getattr(model.config, "vision_config", None), "deepstack_visual_indexes", None):
            raise NoPictures(f"{type(model).__name__} adds pictures to its layers, too, which is not done here")
        self.token_id = int(getattr(model.config, "image_token_id", None) or -1)
        if self.token_id < 0:
            raise NoPictures(f"the configuration of {type(model).__name__} names no `image_token_id`")
        self._processor = _processor(place, tokenizer)
        self.token = str(self._processor.image_token)
        self.mark = str(tokenizer.convert_ids_to_tokens(self.token_id))
        self.template: str | None = getattr(self._processor, "chat_template", None)
        self._names = set(inspect.signature(base.get_image_features).parameters)
        self._files = dict(_files(place))
        self._known: OrderedDict[bytes, Read] = OrderedDict()
        self._size = 0

    def read(self, image: np.ndarray) -> Read:
        """Text, ids and inputs of an image. Equal images are processed once.

        Raises: EpisodeFailure (boundary "environment"), for an image that the processor refuses.
        """
        key = digest_of(image)
        if key not in self._known:
            read = self._read(image)
            self._size += _bytes(read)
            while self._known and self._size > KEPT_BYTES:
                self._size -= _bytes(self._known.popitem(last=False)[1])
            self._known[key] = read
        self._known.move_to_end(key)
        return self._known[key]

    def _read(self, image: np.ndarray) -> Read:
        try:
            made = self._processor(
                text=[self.token], images=[opened(image)], return_text_replacement_offsets=True, return_tensors="pt"
            )
        except (ValueError, TypeError, RuntimeError, ZeroDivisionError) as error:
            first = str(error).strip().partition("\n")[0]
            raise EpisodeFailure(
                boundary="environment",
                where=f"an image of the shape {image.shape}",
                what=f"the model's processor refuses it: {first}",
                remedy="Give images of (height, width, channels) with 1, 3 or 4 channels, or set `pictures: false` of "
                "the policy.",
            ) from error
        ((replaced,),) = made["text_replacement_offsets"]
        count = int((torch.as_tensor(made["input_ids"]) == self.token_id).sum())
        return Read(replaced["replacement"], count, {name: made[name] for name in made if name in self._names})

    def together(self, images: Sequence[np.ndarray]) -> dict[str, Tensor]:
        """The inputs of a sequence with these images, for the model's own forward pass."""
        made = self._processor(
            text=[self.token * len(images)], images=[opened(image) for image in images], return_tensors="pt"
        )
        return {name: made[name] for name in made if name not in OF_TEXT}

    def save(self, folder: Path) -> None:
        """Write the files of the processor into the folder of a model."""
        for name, content in self._files.items():
            (folder / name).write_bytes(content)


def read_again(reader: PictureReader | None, pictures: Sequence[Picture], *, where: str) -> tuple[Picture, ...]:
    """Recorded pictures with the `inputs` that the model reads.

    Raises: ContractError, naming `where`, if there is no reader, or if the reader gives an image another number of ids.
    """
    found = []
    for picture in pictures:
        read = None if reader is None else reader.read(picture.image)
        if read is None or read.count != picture.count:
            raise ContractError(
                where=where,
                what=f"a recorded prompt has {picture.count} ids for an image, and the policy's model reads "
                f"{'no pictures' if read is None else f'{read.count} for it'}.",
                remedy="Use the model that played the episodes.",
            )
        found.append(picture._replace(inputs=read.inputs))
    return tuple(found)


def _bytes(read: Read) -> int:
    return sum(tensor.nbytes for tensor in read.inputs.values())


def opened(image: np.ndarray) -> Image.Image:
    """An image for the processor: red, green, blue."""
    channels = image.shape[2]
    if channels not in CHANNELS:
        raise ValueError(f"{channels} channels are neither gray (1), nor colors (3), nor colors with opacity (4).")
    return Image.fromarray(image[:, :, 0] if channels == 1 else image, CHANNELS[channels]).convert("RGB")


def _processor(place: str, tokenizer: Any) -> Any:
    """The processor of a model for texts and images, without its part for videos, which needs torchvision.

    Raises: NoPictures.
    """
    try:
        config = config_of(place)
        kind: Any = transformers.PROCESSOR_MAPPING[type(config)]
    except KeyError:
        raise NoPictures(f"transformers has no processor for models of the type `{config.model_type}`") from None
    try:
        # The backend of pillow gives the same numbers on every machine, and torchvision need not be installed.
        images = transformers.AutoImageProcessor.from_pretrained(
            place, local_files_only=True, trust_remote_code=False, backend="pil"
        )
    except (OSError, ValueError, ImportError) as error:
        first = str(error).strip().partition("\n")[0]
        raise NoPictures(f"its image processor cannot be made with pillow: {first}") from error
    given = {"image_processor": images, "tokenizer": tokenizer}
    still: Any = type(kind.__name__, (kind,), {"check_argument_for_proper_class": lambda *_: None})
    try:
        said, _ = kind.get_processor_dict(place, local_files_only=True)
        with _without_words(kind):
            made = still.from_args_and_dict([given.get(name) for name in kind.get_attributes()], said)
    except (OSError, ValueError, ImportError, TypeError, AttributeError) as error:
        first = str(error).strip().partition("\n")[0]
        raise NoPictures(f"its processor cannot be made: {first}") from error
    if getattr(made, "image_token", None) is None:
        raise NoPictures(f"{kind.__name__} has no token that stands for an image")
    return made


@contextmanager
def _without_words(kind: type) -> Iterator[None]:
    """Let SmolVLM's processor be made without the package `num2words`, which writes the numbers of a video's frames."""
    module: Any = sys.modules[kind.__module__]
    if getattr(module, "num2words", kind) is not None:
        yield
        return
    module.num2words = str
    try:
        yield
    finally:
        module.num2words = None


def _files(place: str) -> Iterator[tuple[str, bytes]]:
    for name in FILES:
        found = cached_file(
            place,
            name,
            local_files_only=True,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_connection_errors=False,
        )
        if isinstance(found, str):
            yield name, Path(found).read_bytes()


# ---- what the model reads ---------------------------------------------------------------------------------
def reads_pictures(model: Any) -> bool:
    """Whether a model has a vision tower and an id that stands for an image."""
    known = callable(getattr(base_of(model), "get_image_features", None))
    return known and getattr(model.config, "image_token_id", None) is not None


def picture_states(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """What the model reads in place of the placeholders of one picture: (placeholders, width), with gradient."""
    place = model.get_input_embeddings().weight
    given = {
        name: tensor.to(place.device, model.dtype) if tensor.is_floating_point() else tensor.to(place.device)
        for name, tensor in inputs.items()
    }
    base: Any = base_of(model)
    states = base.get_image_features(**given, return_dict=True).pooler_output
    if isinstance(states, list | tuple):
        states = torch.cat([one.flatten(0, -2) for one in states])
    return states.flatten(0, -2).to(place.dtype)  # type: ignore[no-any-return]


def places_of(picture: Picture, ids: Sequence[int] | np.ndarray, token_id: int) -> np.ndarray:
    """int64 (placeholders,): where a picture's placeholders stand in the ids of its sequence."""
    return picture.start + np.flatnonzero(np.asarray(ids[picture.start : picture.stop]) == token_id)


def turns_positions(model: Any) -> bool:
    """Whether a picture has positions of its own: height and width, as those of Qwen2-VL."""
    return callable(getattr(base_of(model), "get_rope_index", None))


def positions_of(model: Any, ids: Sequence[int] | np.ndarray, pictures: Sequence[Picture]) -> Tensor:
    """int64 (3, ids): time, height and width of each id, as the model itself counts them."""
    base: Any = base_of(model)
    tokens = torch.from_numpy(np.asarray(ids, np.int64))[None]
    kinds = torch.zeros_like(tokens)
    for picture in pictures:
        kinds[0, places_of(picture, ids, model.config.image_token_id)] = 1
    if not pictures:
        return torch.arange(tokens.shape[1]).expand(3, -1)
    names = inspect.signature(base.get_rope_index).parameters
    given = [{name: one for name, one in (picture.inputs or {}).items() if name in names} for picture in pictures]
    joined = {name: torch.cat([one[name] for one in given]) for name in given[0]}
    return base.get_rope_index(tokens, mm_token_type_ids=kinds, **joined)[0][:, 0]  # type: ignore[no-any-return]


def picture_inputs(model: Any, ids: Tensor, pictures: Sequence[Sequence[Picture]]) -> dict[str, Tensor]:
    """The inputs of a forward pass over sequences with pictures, with gradient.

    Args:
        ids: int64 (samples, length), padded on the right.
        pictures: of each sample, with `inputs`.
    """
    known: dict[bytes, Tensor] = {}
    rows, columns, states = [], [], []
    host = ids.cpu().numpy()
    for row, shown in enumerate(pictures):
        for picture in shown:
            key = digest_of(picture.image)
            if key not in known:  # samples of a group often show the same picture
                known[key] = picture_states(model, picture.inputs or {})
            places = places_of(picture, host[row], model.config.image_token_id)
            rows += [row] * len(places)
            columns += places.tolist()
            states.append(known[key][: len(places)])
    where = tuple(torch.tensor(index, device=ids.device) for index in (rows, columns))
    embedded = embed(model, ids, where, torch.cat(states))
    if not turns_positions(model):
        return {"inputs_embeds": embedded}
    positions = torch.stack([positions_of(model, host[row], shown) for row, shown in enumerate(pictures)], 1)
    return {"inputs_embeds": embedded, "position_ids": positions.to(ids.device)}


def own_inputs(model: Any, reader: PictureReader, ids: np.ndarray, pictures: Sequence[Picture]) -> dict[str, Tensor]:
    """What the model's own forward pass over one sequence gets beside its ids, if transformers alone reads it."""
    if not pictures:
        return {}
    kinds = torch.zeros(1, len(ids), dtype=torch.int64)
    for picture in pictures:
        kinds[0, places_of(picture, ids, reader.token_id)] = 1
    given = {**reader.together([picture.image for picture in pictures]), "mm_token_type_ids": kinds}
    names = inspect.signature(model.forward).parameters
    device = model.get_input_embeddings().weight.device
    return {
        name: tensor.to(device, model.dtype) if tensor.is_floating_point() else tensor.to(device)
        for name, tensor in given.items()
        if name in names
    }


def embed(model: Any, ids: Tensor, where: tuple[Tensor, ...], states: Tensor) -> Tensor:
    """The embeddings (…, width) of ids (…), with `states` at the places `where`."""
    plain = ids.index_put(where, ids.new_zeros(()))  # the placeholder may lie outside the vocabulary
    embedded: Tensor = model.get_input_embeddings()(plain)
    return embedded.index_put(where, states.to(embedded.dtype))
