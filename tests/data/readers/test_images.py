"""Image files of every layout become the same arrays; what is wrong with one is said with its name."""

import numpy as np
import pytest
from PIL import Image

from hcfl.data.readers import idx, image_folder, parquet
from hcfl.data.readers.images import decode, decode_chunk, join
from hcfl.errors import InputError
from image_files import class_folders, encode, hub_folder, pictures, write_idx, write_parquet


def named(images):
    return [(f"image {i}", encode(image)) for i, image in enumerate(images)]


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("1", 1), ("LA", 1), ("RGB", 3), ("RGBA", 3), ("P", 3)])
def test_grey_images_have_one_channel_and_others_three(mode, channels, tmp_path):
    image = Image.fromarray(pictures(1)[0]).convert(mode)
    image.save(tmp_path / "a.png")
    pixels = decode("a.png", tmp_path / "a.png", None)
    assert pixels.shape == (32, 32, channels)
    assert pixels.dtype == np.uint8
    expected = np.asarray(image.convert("L" if channels == 1 else "RGB")).reshape(pixels.shape)
    assert np.array_equal(pixels, expected)


def test_grey_images_among_coloured_ones_become_coloured():
    grey, coloured = pictures(2, channels=1), pictures(2)
    x = join([decode_chunk(named(grey), None), decode_chunk(named([coloured[0], grey[1]]), None)], 4)
    assert x.shape == (4, 32, 32, 3)
    assert np.array_equal(x[1], np.repeat(grey[1][..., None], 3, axis=-1))
    assert np.array_equal(x[2], coloured[0])
    assert np.array_equal(x[3], x[1])
    assert join([decode_chunk(named(coloured), None), decode_chunk(named(grey), None)], 4).shape[-1] == 3


def test_images_of_other_sizes_are_refused_by_name_or_resized():
    images = named([pictures(1, 32)[0], pictures(1, 64)[0]])
    with pytest.raises(InputError, match=r"^image 1 has 64×64 pixels, but image 0 has 32×32 .*data.resize$"):
        decode_chunk(images, None)
    with pytest.raises(InputError, match=r"^image 1 has 64×64 pixels, but image 0 has 32×32"):
        join([decode_chunk(images[:1], None), decode_chunk(images[1:], None)], 2)
    assert decode_chunk(images, 28).pixels.shape == (2, 28, 28, 3)


def test_photographs_are_turned_upright(tmp_path):
    image = Image.fromarray(pictures(1)[0][:, :16])
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(decode("a", tmp_path / "a.png", None), np.rot90(np.asarray(image), -1))


def test_images_that_do_not_decode_are_named(tmp_path):
    with pytest.raises(InputError, match=r"^a.png: cannot be decoded as an image \(it is no image that Pillow knows\)"):
        decode("a.png", b"no image", None)
    with pytest.raises(InputError, match=r"^b.png: cannot be decoded as an image"):
        decode("b.png", encode(pictures(1)[0])[:60], None)
    with pytest.raises(InputError, match="more than 8 bits, mode I;16"):
        decode("c.png", encode(np.ones((8, 8), np.uint16)), None)


def test_a_folder_of_images(tmp_path):
    x = class_folders(tmp_path / "pets", ("dog", "cat", "emu"), each=4)
    (tmp_path / "pets" / "README.md").write_text("not a class")
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "pets" / ".hidden").mkdir()
    found = image_folder.listing(tmp_path / "pets")
    entry = image_folder.read(found, None)
    assert entry.facts["classes"] == ("cat", "dog", "emu")
    assert entry.arrays["y"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert entry.arrays["y"].dtype == np.int64
    assert np.array_equal(entry.arrays["x"][:4], x[4:8])
    assert "test" not in entry.arrays


def test_a_folder_with_train_and_test(tmp_path):
    class_folders(tmp_path / "train", each=4)
    class_folders(tmp_path / "val", each=3)
    entry = image_folder.read(image_folder.listing(tmp_path), 16)
    assert entry.arrays["test"].tolist() == [False] * 8 + [True] * 6
    assert entry.arrays["y"].tolist() == [0] * 4 + [1] * 4 + [0] * 3 + [1] * 3
    assert entry.arrays["x"].shape == (14, 16, 16, 3)


def test_folders_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="must have a sub-folder of images for each of at least 2 classes"):
        image_folder.listing(tmp_path)
    class_folders(tmp_path / "train")
    class_folders(tmp_path / "test", ("cat", "emu"))
    with pytest.raises(InputError, match=r"test: its classes are not those of .*train, dog is only in one of them"):
        image_folder.listing(tmp_path)
    (tmp_path / "train" / "empty").mkdir()
    with pytest.raises(InputError, match="train/empty: the folder of a class has no images in it"):
        image_folder.listing(tmp_path / "train")
    (tmp_path / "test" / "cat" / "3.png").write_bytes(b"?")
    with pytest.raises(InputError, match=r"test/cat/3.png: cannot be decoded"):
        image_folder.read(image_folder.listing(tmp_path / "test"), None)


def test_parquet_files_as_the_hub_has_them(tmp_path):
    x, y = hub_folder(tmp_path / "data", classes=("cat", "dog", "emu"))
    entry = parquet.read(tmp_path, parquet.files(tmp_path), None)
    assert np.array_equal(entry.arrays["x"], x)
    assert entry.arrays["y"].tolist() == y.tolist()
    assert entry.arrays["test"].tolist() == [False] * 40 + [True] * 20
    assert entry.facts["classes"] == ("cat", "dog", "emu")


def test_the_number_of_workers_changes_nothing(tmp_path):
    hub_folder(tmp_path / "hub")
    class_folders(tmp_path / "folder")
    files, found = parquet.files(tmp_path / "hub"), image_folder.listing(tmp_path / "folder")
    for read in (lambda n: parquet.read(tmp_path / "hub", files, None, n), lambda n: image_folder.read(found, None, n)):
        one, two = read(1), read(2)
        assert one.facts == two.facts
        assert all(np.array_equal(one.arrays[name], two.arrays[name]) for name in ("x", "y"))


def test_other_names_of_columns(tmp_path):
    data = [encode(image) for image in pictures(4)]
    one = write_parquet(tmp_path / "one.parquet", data, [0, 1, 2, 0], "abc", image="img", label="fine_label")
    assert parquet.read(tmp_path, [one], None).facts["classes"] == ("a", "b", "c")
    two = write_parquet(tmp_path / "two.parquet", data, [0, 1, 2, 0], "abc", label="species")
    assert parquet.read(tmp_path, [two], None).arrays["y"].tolist() == [0, 1, 2, 0]
    bare = write_parquet(tmp_path / "bare.parquet", data, [0, 1, 2, 0])
    assert parquet.read(tmp_path, [bare], None).facts["classes"] == ("0", "1", "2")
    odd = write_parquet(tmp_path / "odd.parquet", data, [0, 1, 2, 0], label="age")
    with pytest.raises(InputError, match=r"odd.parquet: must have one column of images .* has .*, age \(int64\)"):
        parquet.read(tmp_path, [odd], None)


@pytest.mark.parametrize(
    ("names", "test"),
    [
        (["train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"], ["test-00000-of-00001"]),
        (["train", "valid"], ["valid"]),
        (["train", "validation-0"], ["validation-0"]),
        (["train", "valid", "test"], ["test"]),
        (["training/0", "testing/0"], ["testing/0"]),
        (["one", "two", "testimony"], []),
        (["mnist-train", "mnist-test"], ["mnist-test"]),
        (["my_train", "my_test"], ["my_test"]),
        (["train/a/b/x", "test/a/b/x"], ["test/a/b/x"]),
        (["test-set/train", "test-set/test"], ["test-set/test"]),
    ],
)
def test_train_and_test_by_file_name(tmp_path, names, test):
    paths = [tmp_path / f"{name}.parquet" for name in names]
    assert parquet.test_files(tmp_path, paths) == {tmp_path / f"{name}.parquet" for name in test}


def bad_parquet(folder, case):
    data, classes = [encode(image) for image in pictures(4)], ("cat", "dog")
    path = write_parquet(folder / "train.parquet", data, [0, 1, 0, 1], classes, groups=2)
    if case == "cut":
        path.write_bytes(path.read_bytes()[:-200])
    elif case == "cut inside":
        whole = path.read_bytes()
        path.write_bytes(whole[:100] + bytes(400) + whole[500:])
    elif case == "bad image":
        write_parquet(path, [*data[:3], b"?"], [0, 1, 0, 1], classes, groups=2)
    elif case == "no image":
        write_parquet(path, [*data[:3], None], [0, 1, 0, 1], classes, groups=2)
    elif case == "other classes":
        write_parquet(folder / "test.parquet", data, [0, 1, 0, 1], ("cat", "emu"))
    elif case == "label too large":
        write_parquet(folder / "test.parquet", data, [0, 1, 2, 1], classes)
    elif case == "label far too large":
        write_parquet(path, data, [0, 1, 10**10, 1])
    elif case == "no label":
        write_parquet(path, data, [0, 1, None, 1], classes)
    elif case == "no training samples":
        write_parquet(path, [], [], classes)
        write_parquet(folder / "test.parquet", data, [0, 1, 0, 1], classes)


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("cut", r"train.parquet: cannot be read as parquet \("),
        ("cut inside", r"train.parquet"),
        ("bad image", r"train.parquet, image 1 of row group 1: cannot be decoded as an image"),
        ("no image", r"train.parquet, image 1 of row group 1: cannot be decoded as an image"),
        ("other classes", r"test.parquet: its classes are not those of .*train.parquet"),
        ("label too large", r"test.parquet: has label 2, but labels must be 0 to 1"),
        ("label far too large", r"train.parquet: has label 10000000000, but labels must be 0 to 3"),
        ("no label", r"train.parquet: some of its labels are missing"),
        ("no training samples", r"its parquet files hold no training samples"),
    ],
)
def test_damaged_parquet_files_are_named(tmp_path, case, sentence):
    bad_parquet(tmp_path, case)
    with pytest.raises(InputError, match=sentence):
        parquet.read(tmp_path, parquet.files(tmp_path), None, workers=1)


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    hub_folder(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"needs pyarrow; pip install 'hcfl\[images\]'"):
        parquet.read(tmp_path, parquet.files(tmp_path), None)


def idx_folder(folder, suffix=".gz"):
    x, y = pictures(30, 28, channels=1), np.arange(30) % 10
    for part, rows in (("train", np.s_[:20]), ("t10k", np.s_[20:])):
        write_idx(folder / f"{part}-images-idx3-ubyte{suffix}", x[rows])
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", y[rows])
    return x, y


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_four_files_of_mnist(tmp_path, suffix):
    x, y = idx_folder(tmp_path / "fashion-mnist", suffix)
    entry = idx.read(idx.files(tmp_path / "fashion-mnist"))
    assert np.array_equal(entry.arrays["x"], x[..., None])
    assert entry.arrays["y"].tolist() == y.tolist()
    assert entry.arrays["test"].tolist() == [False] * 20 + [True] * 10
    assert entry.facts["classes"][9] == "Ankle boot"
    (tmp_path / "fashion-mnist").rename(tmp_path / "mnist")
    assert idx.read(idx.files(tmp_path / "mnist")).facts["classes"][9] == "9"


def test_damaged_idx_files_are_named(tmp_path):
    idx_folder(tmp_path)
    paths = idx.files(tmp_path)
    write_idx(paths[1], np.zeros(3))
    with pytest.raises(InputError, match=r"train-labels-idx1-ubyte.gz: has 3 labels, but there are 20 images"):
        idx.read(paths)
    paths[2].write_bytes(paths[2].read_bytes()[:50])
    with pytest.raises(InputError, match=r"t10k-images-idx3-ubyte.gz: cannot be read"):
        idx.read(paths)
    write_idx(paths[2], np.zeros(30))
    with pytest.raises(InputError, match=r"t10k-images-idx3-ubyte.gz: is not a complete idx file of bytes with 3 axes"):
        idx.read(paths)
    paths[3].unlink()
    assert idx.files(tmp_path) == []
