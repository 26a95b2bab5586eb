"""Small image files of every layout, for tests."""

import gzip
import io
import json

import numpy as np
from PIL import Image


def pictures(number, side=32, channels=3, seed=0):
    """Return random smooth images: (n, side, side[, 3]) bytes."""
    small = np.random.default_rng(seed).integers(0, 256, (number, 4, 4, channels), dtype=np.uint8)
    large = np.repeat(np.repeat(small, side // 4, axis=1), side // 4, axis=2)
    return large if channels > 1 else large[..., 0]


def encode(image, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(image).save(file, kind)
    return file.getvalue()


def write_parquet(path, encoded, labels, classes=None, image="image", label="label", groups=4):
    """Write a file as the hub does."""
    import pyarrow as pa
    from pyarrow import parquet

    images = pa.array(
        [{"bytes": data, "path": f"{i}.png"} for i, data in enumerate(encoded)],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    table = pa.table({image: images, label: pa.array(labels, pa.int64())})
    if classes is not None:
        features = {image: {"_type": "Image"}, label: {"names": list(classes), "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, row_group_size=max(1, -(-len(labels) // groups)))
    return path


def hub_folder(folder, train=40, test=20, classes=("cat", "dog"), side=32):
    """Write train and test files; return the images and labels that they hold, training ones first."""
    x = pictures(train + test, side)
    y = np.arange(train + test) % len(classes)
    encoded = [encode(image) for image in x]
    write_parquet(folder / "train.parquet", encoded[:train], y[:train], classes)
    write_parquet(folder / "test.parquet", encoded[train:], y[train:], classes)
    return x, y


def class_folders(folder, classes=("cat", "dog"), each=6, side=32, channels=3):
    """Write one sub-folder of images for each class; return the images, class after class."""
    x = pictures(len(classes) * each, side, channels)
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            (folder / name / f"{i}.png").write_bytes(encode(x[label * each + i]))
    return x


def write_idx(path, array):
    """Write an array of bytes as the files of MNIST are."""
    header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    data = header + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
