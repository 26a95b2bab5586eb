"""Decodes images with Pillow into arrays of bytes, all of one size."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from hcfl.data.readers.available_memory import check_memory
from hcfl.errors import InputError

Pixels = NDArray[np.uint8]

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that are decoded, by content, not by file name; some of Pillow's other formats start other programs."""

CHUNK = 1000
"""Images that a worker decodes at a time: enough to keep it busy, few enough to share the work."""


@dataclass(frozen=True)
class Chunk:
    """Some images of a source, decoded: (n, H, W, 1 or 3)."""

    pixels: Pixels
    first: str
    """The name of the first image, for error messages."""


def decode(name: str, encoded: bytes | Path, resize: int | None) -> Pixels:
    """Decode one image: (H, W, 1) where it is grey, (H, W, 3) otherwise; transparency is dropped."""
    try:
        with Image.open(BytesIO(encoded) if isinstance(encoded, bytes) else encoded, formats=FORMATS) as file:
            image: Image.Image = ImageOps.exif_transpose(file) if "exif" in file.info else file
            if image.mode[0] in "IF":
                raise ValueError(f"its pixels have more than 8 bits, mode {image.mode}")
            if image.mode not in ("L", "RGB"):
                image = image.convert("L" if image.mode in ("1", "LA") else "RGB")
            if resize is not None:
                image = image.resize((resize, resize), Image.Resampling.BILINEAR)
            return np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width, -1)
    except Exception as error:  # a damaged image can raise nearly anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        reason = "it is no image that Pillow knows" if reason.startswith("cannot identify") else reason
        raise InputError(f"{name}: cannot be decoded as an image ({reason})") from None


def decode_chunk(images: Iterable[tuple[str, bytes | Path]], resize: int | None) -> Chunk:
    """Decode some images, at least one."""
    first, pixels = "", list[Pixels]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a palette with transparency
        warnings.simplefilter("error", Image.DecompressionBombWarning)  # a small file that is a very large picture
        for name, encoded in images:
            pixels.append(decode(name, encoded, resize))
            first = first or name
            _same_size(pixels[0], first, pixels[-1], name)
    if len({one.shape[-1] for one in pixels}) > 1:
        pixels = [np.broadcast_to(one, (*one.shape[:2], 3)) for one in pixels]
    return Chunk(np.stack(pixels), first)


def join(chunks: Iterable[Chunk], total: int) -> Pixels:
    """Concatenate chunks as they arrive; grey images among coloured ones get three channels."""
    first, at = None, 0
    for chunk in chunks:
        if first is None:
            check_memory(chunk.first, total * chunk.pixels[0].size)
            first, pixels = chunk.first, np.empty((total, *chunk.pixels.shape[1:]), np.uint8)
        _same_size(pixels[0], first, chunk.pixels[0], chunk.first)
        if chunk.pixels.shape[-1] > pixels.shape[-1]:
            pixels = np.repeat(pixels, 3, axis=-1)
        pixels[at : at + len(chunk.pixels)] = chunk.pixels
        at += len(chunk.pixels)
    return pixels


def _same_size(one: Pixels, one_name: str, other: Pixels, other_name: str) -> None:
    if one.shape[:2] != other.shape[:2]:
        sizes = [f"{shape[1]}×{shape[0]} pixels" for shape in (one.shape, other.shape)]
        raise InputError(
            f"{other_name} has {sizes[1]}, but {one_name} has {sizes[0]}: images must be of one size, "
            "or be made so with data.resize"
        )
