"""Decodes images with Pillow into arrays of bytes, all of one size."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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

GREY = ("L", "1", "LA")
"""Pillow's modes of images that get one channel."""

CHUNK = 1000
"""Images that a worker decodes at a time: enough to keep it busy, few enough to share the work."""

DECODING = 8
"""Bytes for each pixel of the image that is decoded at the moment: Pillow's own four, and as many if it converts."""

OVERHEAD = 500
"""Bytes for each image that Python's objects take, beside its pixels."""


@dataclass(frozen=True)
class Chunk:
    """Some images of a source, decoded: (n, H, W, 1 or 3)."""

    pixels: Pixels
    first: str
    """The name of the first image, for error messages."""


def decode(name: str, encoded: bytes | Path, resize: int | None) -> Pixels:
    """Decode one image: (H, W, 1) where it is grey, (H, W, 3) otherwise; transparency is dropped."""
    with _sentences(name), _open(encoded) as file:
        image: Image.Image = ImageOps.exif_transpose(file) if "exif" in file.info else file
        if image.mode[0] in "IF":
            raise ValueError(f"its pixels have more than 8 bits, mode {image.mode}")
        if image.mode not in ("L", "RGB"):
            image = image.convert("L" if image.mode in GREY else "RGB")
        if resize is not None:
            image = image.resize((resize, resize), Image.Resampling.BILINEAR)
        return np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width, -1)


def _open(encoded: bytes | Path) -> Image.Image:
    """Open an image; Pillow reads its header, and decodes it when its pixels are asked for."""
    return Image.open(BytesIO(encoded) if isinstance(encoded, bytes) else encoded, formats=FORMATS)


@contextmanager
def _strict() -> Iterator[None]:
    """Make Pillow refuse a small file that is a very large picture, and let it pass a palette with transparency."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


@contextmanager
def _sentences(name: str) -> Iterator[None]:
    """Turn what a damaged image raises, which can be nearly anything, into a sentence that names it."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        reason = "it is no image that Pillow knows" if reason.startswith("cannot identify") else reason
        raise InputError(f"{name}: cannot be decoded as an image ({reason})") from None


@dataclass(frozen=True)
class _Header:
    """What an image's header says about its size."""

    pixels: int
    channels: int
    kept: int
    """Pixels that are left after it is resized."""

    @staticmethod
    def read(name: str, encoded: bytes | Path, resize: int | None) -> "_Header":
        with _sentences(name), _open(encoded) as image:
            pixels = image.width * image.height
            kept = pixels if resize is None else resize * resize
            return _Header(pixels, 1 if image.mode in GREY else 3, kept)


def check_all(name: str, encoded: bytes | Path, images: int, resize: int | None) -> None:
    """Refuse so many images of the size of this one, where they do not fit into the free memory."""
    with _strict():
        header = _Header.read(name, encoded, resize)
    check_memory(name, header.kept * header.channels * images + header.pixels * DECODING)


def _check_chunk(images: Sequence[tuple[str, bytes | Path]], resize: int | None, side_by_side: int) -> None:
    """Refuse images that do not fit into the free memory, by their headers, before any of them is decoded.

    They are held twice for a moment: one by one, and together, where all have the channels of the one with the most.
    """
    headers = [_Header.read(name, encoded, resize) for name, encoded in images]
    alone = sum(header.kept * header.channels + OVERHEAD for header in headers)
    together = sum(header.kept for header in headers) * max(header.channels for header in headers)
    decoding = max(header.pixels for header in headers) * DECODING
    check_memory(images[0][0], (alone + together + decoding) * side_by_side)


def decode_chunk(images: Sequence[tuple[str, bytes | Path]], resize: int | None, side_by_side: int = 1) -> Chunk:
    """Decode some images, at least one; `side_by_side` processes do so at a time."""
    first, pixels = "", list[Pixels]()
    with _strict():
        _check_chunk(images, resize, side_by_side)
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
        if at + len(chunk.pixels) > total:
            raise InputError(f"{chunk.first}: there are more images than the {total} that its file declares")
        if chunk.pixels.shape[-1] > pixels.shape[-1]:
            check_memory(chunk.first, 3 * pixels.size)
            pixels = np.repeat(pixels, 3, axis=-1)
        pixels[at : at + len(chunk.pixels)] = chunk.pixels
        at += len(chunk.pixels)
    if at < total:
        raise InputError(f"{first}: there are {at} images, but its files declare {total}")
    return pixels


def _same_size(one: Pixels, one_name: str, other: Pixels, other_name: str) -> None:
    if one.shape[:2] != other.shape[:2]:
        sizes = [f"{shape[1]}×{shape[0]} pixels" for shape in (one.shape, other.shape)]
        raise InputError(
            f"{other_name} has {sizes[1]}, but {one_name} has {sizes[0]}: images must be of one size, "
            "or be made so with data.resize"
        )
