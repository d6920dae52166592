"""Images in the messages of an observation: from PIL, arrays, files and bytes, and from lists of content parts.

A message with images has the field `pictures`, a tuple of uint8 arrays (height, width, 3). In its `content`, the
character `PLACE` stands where an image stands. Without it, the images stand before the text.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from palaestra.chat.places import PLACE
from palaestra.data import Observation
from palaestra.data.trajectory import digest_of
from palaestra.errors import InvalidData

Message = dict[str, Any]
TAG = "<image>"  # the place of an image in texts of verl
HELD = ("image", "image_url", "url", "path", "bytes", "base64")  # fields of a part that hold the image itself


def as_image(value: Any, *, folder: Path | None = None, where: str) -> np.ndarray:
    """An image as a uint8 array (height, width, 3).

    Args:
        value: an image of PIL, an array (height, width) or (height, width, channels) of uint8, the bytes of a file, a
            path, a data URL, or a mapping with `bytes` or `path`, as Hugging Face `datasets` stores images.
        folder: where a relative path begins. None: the working folder.
        where: for messages.

    Raises: InvalidData, for anything else, for a file that is not there, and for one that is no image.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path") or value.get("url")
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim in (2, 3):
        value = Image.fromarray(value[:, :, 0] if value.ndim == 3 and value.shape[2] == 1 else value)
    try:
        if isinstance(value, str) and value.startswith("data:"):
            value = base64.b64decode(value.partition(",")[2], validate=True)
        if isinstance(value, bytes):
            value = Image.open(io.BytesIO(value))
        elif isinstance(value, str) and "://" not in value:
            value = Image.open((folder or Path()) / value.removeprefix("file:"))
        if isinstance(value, Image.Image):
            return np.asarray(value.convert("RGB"), np.uint8)
    except (OSError, ValueError, UnidentifiedImageError) as error:
        raise _no_image(where, f"the image cannot be read: {error}.") from error
    shown = f"{value[:60]!r}" if isinstance(value, str) else f"a {type(value).__name__}"
    raise _no_image(where, f"{shown} is no image.")


def _no_image(where: str, what: str) -> InvalidData:
    remedy = "Give a path, the bytes of a file, an image of PIL, or a uint8 array (height, width, 3)."
    return InvalidData(where=where, what=what, remedy=remedy)


def is_content(value: Any) -> bool:
    """Whether a value is a list of content parts, such as `[{"type": "text", "text": "Look:"}, {"type": "image"}]`."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) and "type" in one for one in value)


def with_images(
    messages: Sequence[Mapping[str, Any]], images: Sequence[Any] = (), *, folder: Path | None = None, where: str
) -> tuple[Message, ...]:
    """Messages whose contents are texts, with their images in `pictures`.

    A part `{"type": "image", "image": …}` holds its image. A part `{"type": "image"}`, and `<image>` in a text, stand
    for the next one of `images`. Without any such place, `images` stand before the first message of the user.

    Args:
        messages: with `role` and `content`: a text, a list of parts of the types `text`, `image` and `image_url`, or
            None. Other fields are kept.
        images: of the row, as `as_image` takes them. folder, where: as in `as_image`.

    Raises: InvalidData, for another part, or if the places are not as many as `images`.
    """
    rest = [as_image(one, folder=folder, where=where) for one in images]
    count, tags = len(rest), sum(_tags(message.get("content")) for message in messages)
    tagged = bool(rest) and tags == len(rest)
    made: list[Message] = []
    for message in messages:
        text, pictures = _read(message.get("content"), rest, tagged=tagged, folder=folder, where=where)
        made.append({**message, "content": text} | ({"pictures": tuple(pictures)} if pictures else {}))
    first = next((message for message in made if message["role"] == "user"), None)
    if len(rest) == count and rest and first is not None:  # no place took one
        first["content"] = PLACE * len(rest) + first["content"]
        first["pictures"] = (*rest, *first.get("pictures", ()))
    elif rest:
        raise _unplaced(where, count, count - len(rest))
    return tuple(made)


def refuse_unplaced(messages: Sequence[Mapping[str, Any]], count: int, *, where: str) -> None:
    """Check, without reading an image, that messages have no place for an image that the row does not have.

    Args:
        count: of the row's images.

    Raises: InvalidData.
    """
    parts = [part for message in messages if is_content(message.get("content")) for part in message["content"]]
    places = sum(part["type"] != "text" and all(part.get(name) is None for name in HELD) for part in parts)
    if places not in (0, count):
        raise _unplaced(where, count, places)


def _unplaced(where: str, count: int, places: int) -> InvalidData:
    what = (
        f"it has {count} image{'s' * (count != 1)}, and its messages have {places} place{'s' * (places != 1)} for one."
    )
    remedy = 'Write `{"type": "image"}` once for each image, or nowhere: then they stand before the question.'
    return InvalidData(where=where, what=what, remedy=remedy)


def _tags(content: Any) -> int:
    return content.count(TAG) if isinstance(content, str) else 0


def _read(
    content: Any, rest: list[np.ndarray], *, tagged: bool, folder: Path | None, where: str
) -> tuple[str, list[np.ndarray]]:
    """The text of a content with `PLACE` for each image, and the images. It takes its own from the front of `rest`."""
    if content is None or isinstance(content, str):
        text = (content or "").replace(PLACE, "")
        places = text.count(TAG) if tagged else 0
        taken, rest[:places] = rest[:places], []
        return text.replace(TAG, PLACE) if places else text, taken
    pieces, found = [], []
    for part in content if is_content(content) else [content]:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text" and isinstance(part.get("text"), str):
            pieces.append(part["text"].replace(PLACE, ""))
            continue
        if kind not in ("image", "image_url"):
            remedy = "Use parts of the types `text` and `image`."
            raise InvalidData(where=where, what=f"{str(part)[:80]} is no part of a message.", remedy=remedy)
        held = next((part[name] for name in HELD if part.get(name) is not None), None)
        if held is None and not rest:
            remedy = 'Write `{"type": "image", "image": …}`, or give the images in the column `images`.'
            raise InvalidData(where=where, what="a part of the type `image` has no image.", remedy=remedy)
        found.append(rest.pop(0) if held is None else as_image(held, folder=folder, where=where))
        pieces.append(PLACE)
    return "".join(pieces), found


def without_places(text: str) -> str:
    """A content without the characters that stand for images."""
    return text.replace(PLACE, "")


def observation_of(messages: Sequence[Message], **fields: Any) -> Observation:
    """The observation of messages that `with_images` gave. With images it has no `text`, as it needs them to be read.

    Args:
        fields: further fields of the observation.
    """
    *head, last = messages
    pictures = [picture for message in messages for picture in message.get("pictures", ())]
    if not pictures:
        alone = len(messages) == 1 and last["role"] == "user"
        text = "\n".join(message["content"] for message in messages)
        return Observation(text=text, messages=None if alone else tuple(messages), **fields)
    first = len(pictures) == 1 and last["content"].startswith(PLACE) and last["role"] == "user"
    if first and "pictures" in last:  # the only image stands before the last text
        plain = {name: value for name, value in last.items() if name != "pictures"}
        plain["content"] = without_places(last["content"])
        return Observation(messages=(*head, plain), image=pictures[0], **fields)
    return Observation(messages=tuple(messages), **fields)


def image_digest(value: Any, folder: str, where: str) -> str:
    """The hash of an image, of its file if it has one, which need not be decoded for it.

    Args:
        value: as `as_image` takes it. folder: where a relative path begins. where: for messages.

    Raises: InvalidData, if there is no such file, or for a value that is no image.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path") or value.get("url")
    if isinstance(value, str) and not value.startswith("data:") and "://" not in value:
        path = Path(folder) / value.removeprefix("file:")
        if not path.is_file():
            raise _no_image(where, f"there is no image {path}.")
        value = path.read_bytes()
    if isinstance(value, bytes):
        return hashlib.blake2b(value, digest_size=16).hexdigest()
    return digest_of(as_image(value, folder=Path(folder), where=where)).hex()
