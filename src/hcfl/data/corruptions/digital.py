"""What software does to an image: brightness, contrast, colours, shape, resolution and compression."""

from io import BytesIO

import numpy as np
from PIL import Image
from scipy import ndimage

from hcfl.data.corruptions.geometry import Images, sample
from hcfl.data.corruptions.streams import Streams


def brightness(x: Images, streams: Streams, added: float) -> Images:
    """Raise the V of HSV; hue and saturation stay, so the channels grow by one factor."""
    value = x.max(axis=3, keepdims=True)
    brighter = np.minimum(value + np.float32(added), 1)
    scaled: Images = np.where(value > 0, x * brighter / np.maximum(value, 1e-9), brighter)
    return scaled


def contrast(x: Images, streams: Streams, kept: float) -> Images:
    """Draw every channel towards its mean."""
    mean: Images = x.mean(axis=(1, 2), keepdims=True)
    return (x - mean) * kept + mean


def saturate(x: Images, streams: Streams, gain: float, offset: float) -> Images:
    """Change the S of HSV to gain·S + offset; hue and value stay.

    HSV calls a pixel without colour red, so an offset tints it red. A grey image has no saturation: gain and offset
    then act on its value, which makes it too dark or too bright.
    """
    if x.shape[3] == 1:
        return gain * x + offset
    value = x.max(axis=3, keepdims=True)
    deficit = value - x  # = V·S·(a profile of the hue alone)
    chroma = deficit.max(axis=3, keepdims=True)
    saturation = chroma / np.maximum(value, 1e-9)
    changed = np.minimum(gain * saturation + offset, 1)
    red = np.array([0, 1, 1], dtype=np.float32)
    profile = np.where(chroma > 0, deficit / np.maximum(chroma, 1e-9), red)
    recoloured: Images = value - value * changed * profile
    return recoloured


def elastic(x: Images, streams: Streams, strength: float, smoothness: float, jitter: float) -> Images:
    """Move the corners of a triangle at random, which bends the image affinely, and every pixel a little more.

    All three constants are in sides of the image.
    """
    height, width = x.shape[1:3]
    side = min(height, width)
    centre, third = np.array([height // 2, width // 2]), side // 3
    corners = centre + third * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = corners + jitter * side * streams["corners"].uniform(-1, 1, (len(x), 3, 2))
    # The map that takes moved corners back says where each pixel comes from: [row, column, 1] · back.
    back = np.linalg.solve(np.concatenate([moved, np.ones((len(x), 3, 1))], axis=2), corners[None].astype(float))

    field = streams["field"].uniform(-1, 1, (len(x), 2, height, width))
    smooth = (0, 0, smoothness * side, smoothness * side)
    field = strength * side * ndimage.gaussian_filter(field, smooth, truncate=3)
    rows, columns = np.arange(height)[:, None] + field[:, 0], np.arange(width) + field[:, 1]
    row, column, one = back[:, :, None, None].transpose(1, 0, 2, 3, 4)
    sources = rows[..., None] * row + columns[..., None] * column + one
    return sample(x, sources[..., 0], sources[..., 1])


def pixelate(x: Images, streams: Streams, kept: float) -> Images:
    """Shrink and enlarge again with a box filter: pixels that shrink into the same one become their mean."""
    for axis in (1, 2):
        side = x.shape[axis]
        box = (2 * np.arange(side) + 1) * int(side * kept) // (2 * side)
        starts = np.searchsorted(box, np.arange(box[-1] + 1))
        sizes = np.bincount(box).astype(np.float32).reshape(-1, *[1] * (3 - axis))
        x = (np.add.reduceat(x, starts, axis) / sizes).take(box, axis)
    return x


def jpeg(x: Images, streams: Streams, quality: int) -> Images:
    """Compress as JPEG, one image at a time: that is how the encoder works."""
    pixels = np.rint(x * 255).astype(np.uint8)
    grey = x.shape[3] == 1
    for row, image in enumerate(pixels):
        file = BytesIO()
        Image.fromarray(image[..., 0] if grey else image).save(file, "JPEG", quality=quality)
        decoded = np.asarray(Image.open(file))
        pixels[row] = decoded[..., None] if grey else decoded
    return pixels.astype(np.float32) / np.float32(255)
