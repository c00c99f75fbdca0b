import io
import json
import pickle
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import goldiprox as gp
from goldiprox.data import parquet, sources
from goldiprox.errors import ConfigError, DataError, MissingData, MissingExtra, UnknownName
from goldiprox.prepare import DataConfig, prepare


def write_parquet(
    path, images, labels, *, column="image", label="label", names=None, format="PNG", row_group_size=None
):
    def encode(array):
        buffer = io.BytesIO()
        Image.fromarray(array).save(buffer, format)
        return {"bytes": buffer.getvalue(), "path": None}

    table = pa.table({column: [encode(i) for i in images], label: pa.array(labels, pa.int64())})
    if names:
        info = {"info": {"features": {label: {"_type": "ClassLabel", "names": names}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, path, row_group_size=row_group_size)


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (12, 5, 4, 3), dtype=np.uint8)


def test_a_folder_in_the_hubs_layout(tmp_path, images):
    folder = tmp_path / "pets"
    folder.mkdir()
    write_parquet(folder / "train-00000-of-00002.parquet", images[:5], range(5), column="img", names=list("abcdef"))
    write_parquet(folder / "train-00001-of-00002.parquet", images[5:9], [0] * 4, column="img", names=list("abcdef"))
    write_parquet(folder / "test-00000-of-00001.parquet", images[9:], [5, 1, 2], column="img", format="WebP")
    train, test = gp.load("pets", tmp_path)
    assert torch.equal(train.x, torch.from_numpy(np.moveaxis(images[:9], 3, 1)))
    assert train.y.tolist() == [0, 1, 2, 3, 4, 0, 0, 0, 0]
    assert train.num_classes == test.num_classes == 6
    assert train.class_names == tuple("abcdef")
    assert len(test) == 3
    x, _ = train.gather(torch.arange(9))
    assert x.mean((0, 2, 3)).abs().max() < 1e-3
    assert (x.std((0, 2, 3)) - 1).abs().max() < 1e-2
    assert gp.fingerprint(gp.load(str(folder)).train) == gp.fingerprint(train)


def test_grey_images_have_one_channel(tmp_path, images):
    for part in ("train", "test"):
        write_parquet(tmp_path / f"{part}.parquet", images[..., 0], [0, 1] * 6)
    assert gp.load(str(tmp_path)).train.input_shape == (1, 5, 4)


def test_broken_folders(tmp_path, images):
    with pytest.raises(MissingData, match=r"no train\*\.parquet"):
        gp.load(str(tmp_path))
    write_parquet(tmp_path / "train.parquet", images, [0] * 12)
    write_parquet(tmp_path / "test.parquet", [images[0], images[1][:3]], [0, 0])
    with pytest.raises(DataError, match=r"3x4 \(1 images, image 1\)"):
        gp.load(str(tmp_path))
    pq.write_table(pa.table({"text": ["a"], "label": [1]}), tmp_path / "test.parquet")
    with pytest.raises(DataError, match="expected one image column"):
        gp.load(str(tmp_path))
    (tmp_path / "test.parquet").write_text("not parquet")
    with pytest.raises(DataError, match="cannot read"):
        gp.load(str(tmp_path))


def test_labels_outside_the_named_classes(tmp_path, images):
    for part in ("train", "test"):
        write_parquet(tmp_path / f"{part}.parquet", images, [0, 1, 2] * 4, names=["a", "b"])
    with pytest.raises(DataError, match="outside the 2 classes"):
        gp.load(str(tmp_path))


def test_mnist5k_is_real_and_needs_no_files(monkeypatch):
    train, test = gp.load("mnist5k")
    assert (len(train), len(test)) == (4_000, 1_000)
    assert train.y.bincount().tolist() == [400] * 10
    assert test.y.bincount().tolist() == [100] * 10
    assert train.x.max() == 255
    assert gp.fingerprint(train) == "sha256:c8112370e363"[:19] + gp.fingerprint(train)[19:]
    assert not (train.x.flatten(1)[:, None] == test.x.flatten(1)[None, :20]).all(-1).any()  # no test image inside
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'goldiprox\[demo\]'"):
        gp.load("mnist5k")


def test_missing_and_unknown_data(tmp_path):
    with pytest.raises(MissingData, match="--data-dir or GOLDIPROX_DATA"):
        gp.load("cifar10", tmp_path)
    with pytest.raises(UnknownName, match="Did you mean 'cifar10'"):
        gp.load("cifar1O", tmp_path)


def test_data_of_the_users_own(tmp_path, monkeypatch):
    (tmp_path / "own_data.py").write_text(
        textwrap.dedent("""
            import torch
            class Rows(torch.utils.data.Dataset):
                def __init__(self, n): self.n = n
                def __len__(self): return self.n
                def __getitem__(self, i): return torch.tensor([float(i), 1.0]), i % 3
            def load(): return Rows(30), Rows(9)
            def wrong(): return 5
            def named(): return [(torch.zeros(2), "cat"), (torch.ones(2), "dog")], []
            def ragged(): return [(torch.zeros(i + 1), 0) for i in range(3)], []
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    train, test = gp.load("own_data:load")
    assert train.num_classes == 3
    assert train[4][0].tolist() == [4.0, 1.0]
    assert len(test) == 9
    with pytest.raises(ConfigError, match=r"must return a pair \(train, test\)"):
        gp.load("own_data:wrong")
    with pytest.raises(DataError, match=r"example 0 does not become numbers .* 'cat'.*integers 0\.\.k-1"):
        gp.load("own_data:named")
    with pytest.raises(DataError, match="example 1 has shape"):
        gp.load("own_data:ragged")
    with pytest.raises(UnknownName, match="Did you mean 'load'"):
        gp.load("own_data:lod")
    sys.modules.pop("own_data", None)


def test_files_made_on_the_command_line_serve_in_ones_own_loop(tmp_path, monkeypatch):
    """What is copied into memory there goes by the fingerprint of the data set, until it is damaged."""
    (tmp_path / "known.py").write_text(
        textwrap.dedent("""
            import torch
            class Rows(torch.utils.data.Dataset):
                targets = [i % 3 for i in range(60)]
                def __len__(self): return 60
                def __getitem__(self, i): return torch.tensor([float(i), 1.0]), self.targets[i]
            class Named(Rows):
                def fingerprint(self): return "rows, second edition"
            class Noisy(Rows):
                def __getitem__(self, i): return torch.rand(2), self.targets[i]
            def load(): return Rows(), Rows()
            def named(): return Named(), Rows()
            def noisy(): return Noisy(), Rows()
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    copy = gp.load("known:load").train
    known = sys.modules["known"]
    assert gp.fingerprint(copy) == gp.fingerprint(known.Rows()) == gp.fingerprint(gp.WithIds(known.Rows()))
    assert gp.fingerprint(gp.load("known:named").train) == "rows, second edition"
    for same in (copy.to("cpu"), copy.replace(name="other"), pickle.loads(pickle.dumps(copy))):
        assert gp.fingerprint(same) == gp.fingerprint(copy)
    for other in (copy.replace(y=copy.y.flip(0)), copy.replace(x=copy.x + 1), copy.replace(mean=(0.0,), std=(2.0,))):
        assert gp.fingerprint(other) != gp.fingerprint(copy)
    damaged = prepare(DataConfig("known:load", noise=0.5))
    assert (
        gp.fingerprint(damaged.data) != gp.fingerprint(copy) == gp.fingerprint(prepare(DataConfig("known:load")).data)
    )
    one, other = (gp.load("known:noisy").train for _ in range(2))
    assert gp.fingerprint(one) != gp.fingerprint(other)  # two draws
    sys.modules.pop("known", None)


def test_available_says_where_things_are(tmp_path):
    (tmp_path / "mnist").mkdir()
    found = sources.available(tmp_path)
    assert (found["mnist"]["present"], found["mnist"]["where"]) == (True, str(tmp_path / "mnist"))
    assert (found["cifar10"]["present"], found["cifar10"]["where"]) == (False, str(tmp_path / "cifar10"))
    assert list(found) == list(sources.SOURCES)


@pytest.mark.parametrize(
    ("name", "sizes", "shape", "first_labels"),
    [
        ("mnist", (60_000, 10_000), (1, 28, 28), [5, 0, 4, 1, 9]),
        ("cifar10", (50_000, 10_000), (3, 32, 32), [6, 9, 9, 4, 1]),
    ],
)
def test_real_data_is_read_in_its_original_order(name, sizes, shape, first_labels, real_data):
    train, test = gp.load(name, real_data)
    assert (len(train), len(test)) == sizes
    assert train.input_shape == shape
    assert train.y[:5].tolist() == first_labels
    assert train.num_classes == 10


def hostile_folder(tmp_path, images, labels, **options):
    for part in ("train", "test"):
        write_parquet(tmp_path / f"{part}.parquet", images, labels, **options)
    return str(tmp_path)


def test_images_that_unfold_to_more_than_their_files_are_refused(tmp_path):
    black = np.zeros((6_000, 6_000), np.uint8)  # 36 MB in 40 kB, twice
    with pytest.raises(DataError, match="256 times the space of their files"):
        gp.load(hostile_folder(tmp_path, [black, black], [0, 1]))


def test_formats_that_start_other_programs_are_refused(tmp_path):
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n"
    table = pa.table({"image": [{"bytes": script, "path": None}], "label": [0]})
    for part in ("train", "test"):
        pq.write_table(table, tmp_path / f"{part}.parquet")
    assert Image.open(io.BytesIO(script)).format == "EPS"
    with pytest.raises(DataError, match="image 0 cannot be decoded"):
        gp.load(str(tmp_path))


def test_labels_that_are_missing_or_absurd_are_refused(tmp_path, images):
    with pytest.raises(DataError, match="examples have no label"):
        gp.load(hostile_folder(tmp_path, images[:2], [0, None]))
    with pytest.raises(DataError, match="labels reach 1,099,511,627,776, of 2 examples"):
        gp.load(hostile_folder(tmp_path, images[:2], [0, 2**40]))


def test_more_rows_than_a_file_can_hold_are_refused(tmp_path, images, monkeypatch):
    monkeypatch.setattr(parquet, "SMALL", 0)
    monkeypatch.setattr(parquet, "MAX_EXPANSION", 10)
    repeated = [images[0]] * 20_000  # dictionary-encoded: the image is there once
    with pytest.raises(DataError, match="more than 10 times its size"):
        gp.load(hostile_folder(tmp_path, repeated, [0] * 20_000))


def test_pages_that_unfold_to_more_than_their_file_are_refused(tmp_path):
    table = pa.table({"image": [{"bytes": bytes(80_000_000), "path": None}], "label": [0]})
    for part in ("train", "test"):
        pq.write_table(table, tmp_path / f"{part}.parquet", compression="zstd", use_dictionary=False)
    assert (tmp_path / "train.parquet").stat().st_size < 100_000
    with pytest.raises(DataError, match="256 times its size"):
        gp.load(str(tmp_path))
