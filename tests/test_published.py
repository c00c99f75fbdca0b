"""QMNIST and CINIC-10, read from files in the layouts they are published in."""

import gzip
import struct

import numpy as np
import pytest
import torch
from PIL import Image

import goldiprox as gp
from goldiprox.data import published
from goldiprox.data.idx import read_idx
from goldiprox.errors import DataError, MissingData
from goldiprox.prepare import DataConfig, prepare

CLASSES = ["airplane", "bird", "cat"]


def idx(array: np.ndarray) -> bytes:
    code = {"uint8": 0x08, "int32": 0x0C, "float64": 0x0E}[array.dtype.name]
    head = struct.pack(">BBBB", 0, 0, code, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_qmnist(folder, *, num_train=6, num_test=9, packed=True):
    """Files as published; the test file begins with what is tested on."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    made = {}
    for part, n in (("train", num_train), ("test", num_test)):
        images = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 1000, (n, 8)).astype(np.int32)
        labels[:, 0] %= 10
        made[part] = images, labels[:, 0]
        for name, array in zip(published.QMNIST_FILES[part], (images, labels), strict=True):
            content = idx(array)
            (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
    return made


def write_cinic10(folder, *, per_class=2, size=4):
    rng = np.random.default_rng(0)
    made = {}
    for part in ("train", "valid", "test"):
        for name in CLASSES:
            (folder / part / name).mkdir(parents=True)
            for number in range(per_class):
                image = rng.integers(0, 256, (size, size, 3), dtype=np.uint8)
                Image.fromarray(image).save(folder / part / name / f"n0{number}.png")
                made[part, name, number] = image
    return made


@pytest.fixture
def small_test_set(monkeypatch):
    monkeypatch.setattr(published, "NUM_TEST_OF_QMNIST", 4)


@pytest.mark.parametrize(
    "array", [np.arange(24, dtype=np.int32).reshape(2, 3, 4) - 7, np.ones(3, np.uint8), np.zeros((2, 0))]
)
def test_idx_files_hold_what_was_written(tmp_path, array):
    (tmp_path / "a").write_bytes(idx(array))
    (tmp_path / "b.gz").write_bytes(gzip.compress(idx(array)))
    for name in ("a", "b.gz"):
        read = read_idx(tmp_path / name)
        np.testing.assert_array_equal(read, array)
        assert read.dtype == array.dtype


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file: it begins with nothing"),
        (b"\x89PNG....", "not an idx file: it begins with 89 50"),
        (b"\0\0\x08\x03\0\0", "ends in its header"),
        (idx(np.ones((2, 3), np.uint8))[:-1], r"shape is \(2, 3\), 18 bytes, but has 17"),
        (gzip.compress(idx(np.ones(100, np.uint8)))[:-12], "cannot be unpacked"),
    ],
    ids=["empty", "an image", "half a header", "a byte short", "half a gzip"],  # gzip's bytes hold the time of day
)
def test_broken_idx_files(tmp_path, content, message):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(tmp_path / "f")


@pytest.mark.parametrize("packed", [True, False])
def test_qmnist(tmp_path, small_test_set, packed):
    made = write_qmnist(tmp_path / "qmnist", packed=packed)
    train, test = gp.load("qmnist", tmp_path)
    assert (len(train), len(test)) == (6 + 5, 4)
    np.testing.assert_array_equal(train.x[:6, 0].numpy(), made["train"][0])
    np.testing.assert_array_equal(train.x[6:, 0].numpy(), made["test"][0][4:])
    np.testing.assert_array_equal(test.x[:, 0].numpy(), made["test"][0][:4])
    assert train.labels.tolist() == [*made["train"][1], *made["test"][1][4:]]
    assert test.mean == (0.1307,)


def test_the_extra_images_are_the_holdout(tmp_path, small_test_set):
    write_qmnist(tmp_path / "qmnist")
    prepared = prepare(DataConfig("qmnist", str(tmp_path), noise=0.5))
    assert prepared.split.train.tolist() == list(range(6))
    assert prepared.split.holdout.tolist() == list(range(6, 11))
    assert not prepared.truth.mislabelled[6:].any()
    alone = prepare(DataConfig("qmnist", str(tmp_path), holdout=0))
    assert (alone.split.train.tolist(), len(alone.split.holdout)) == (list(range(6)), 0)


def test_qmnist_says_what_is_missing(tmp_path, small_test_set):
    with pytest.raises(MissingData, match=r"has neither qmnist-train-images.*--data mnist does"):
        gp.load("qmnist", tmp_path)
    write_qmnist(tmp_path / "qmnist", num_test=4)
    with pytest.raises(DataError, match="this one 4, so there is none to hold out"):
        gp.load("qmnist", tmp_path)
    labels = tmp_path / "qmnist" / "qmnist-test-labels-idx2-int.gz"
    labels.write_bytes(idx(np.zeros(4, np.int32)))
    with pytest.raises(DataError, match=r"has shape \(4,\) for 4 images; extended labels"):
        gp.load("qmnist", tmp_path)
    images = tmp_path / "qmnist" / "qmnist-train-images-idx3-ubyte.gz"
    images.write_bytes(idx(np.zeros((2, 2), np.int32)))
    with pytest.raises(DataError, match=r"holds int32 of shape \(2, 2\), not images"):
        gp.load("qmnist", tmp_path)


def test_cinic10(tmp_path):
    made = write_cinic10(tmp_path / "cinic10")
    Image.new("L", (4, 4), 77).save(tmp_path / "cinic10" / "test" / "cat" / "n09.png")
    train, test = gp.load("cinic10", tmp_path)
    assert train.class_names == tuple(CLASSES)
    assert (len(train), len(test)) == (12, 7)
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2] * 2
    np.testing.assert_array_equal(train.x[3].permute(1, 2, 0).numpy(), made["train", "bird", 1])
    np.testing.assert_array_equal(train.x[6].permute(1, 2, 0).numpy(), made["valid", "airplane", 0])
    assert test.x[-1].unique().tolist() == [77]
    prepared = prepare(DataConfig("cinic10", str(tmp_path)))
    assert prepared.split.holdout.tolist() == list(range(6, 12))
    assert torch.equal(prepared.test.x, test.x)


def test_cinic10_says_what_is_missing(tmp_path):
    with pytest.raises(MissingData, match=r"train has no folders of classes; unpack CINIC-10.tar.gz"):
        gp.load("cinic10", tmp_path)
    folder = tmp_path / "cinic10"
    write_cinic10(folder)
    broken = folder / "valid" / "bird" / "n00.png"
    broken.write_bytes(b"no image")
    with pytest.raises(DataError, match=r"n00.png cannot be decoded"):
        gp.load("cinic10", tmp_path)
    Image.new("RGB", (5, 4)).save(broken)
    with pytest.raises(DataError, match=r"4x5 \(1 images, valid/bird/n00.png\)"):
        gp.load("cinic10", tmp_path)
    (folder / "test" / "dog").mkdir()
    with pytest.raises(DataError, match="test has the classes airplane, bird, cat, dog"):
        gp.load("cinic10", tmp_path)
