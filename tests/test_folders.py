"""One's own images in folders: what is read, in which order, and what is said where it cannot be."""

import json
import logging

import numpy as np
import pytest
import torch
from PIL import Image

import goldiprox as gp
from goldiprox.data.images import parse_size
from goldiprox.errors import ConfigError, DataError, MissingData
from goldiprox.prepare import DataConfig, prepare
from test_cli import goldiprox  # noqa: F401

RNG = np.random.default_rng(0)


def pixels(*shape):
    return RNG.integers(0, 256, shape or (6, 5, 3), dtype=np.uint8)


def write(path, array, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)
    return array


@pytest.fixture
def photos(tmp_path):
    """Two classes, three and two training images, a test image each; written in no order."""
    folder = tmp_path / "photos"
    made = {}
    for name in ("test/dog/z.png", "train/dog/b.png", "train/cat/10.png", "train/cat/2.png", "test/cat/a.png"):
        made[name] = write(folder / name, pixels())
    made["train/cat/sub/3.bmp"] = write(folder / "train/cat/sub/3.bmp", pixels())
    made["train/dog/a.tiff"] = write(folder / "train/dog/a.tiff", pixels())
    return folder, made


def test_ids_follow_the_sorted_names(photos):
    folder, made = photos
    train, test = gp.load(str(folder))
    order = ["train/cat/10.png", "train/cat/2.png", "train/cat/sub/3.bmp", "train/dog/a.tiff", "train/dog/b.png"]
    expected = np.stack([made[name] for name in order])
    np.testing.assert_array_equal(train.x.permute(0, 2, 3, 1).numpy(), expected)
    assert train.y.tolist() == [0, 0, 0, 1, 1]
    assert test.y.tolist() == [0, 1]
    assert train.class_names == test.class_names == ("cat", "dog")
    assert train.files == tuple(order)
    assert test.files == ("test/cat/a.png", "test/dog/z.png")
    assert train.name == "photos"
    x, _ = train.gather(torch.arange(5))
    assert x.mean((0, 2, 3)).abs().max() < 1e-3
    assert gp.fingerprint(gp.load("photos", folder.parent).train) == gp.fingerprint(train)


def test_the_fingerprint_covers_content_and_order_not_names_of_files(photos):
    folder, _ = photos
    before = gp.fingerprint(gp.load(str(folder)).train)
    (folder / "train/dog/b.png").rename(folder / "train/dog/c.png")
    assert gp.fingerprint(gp.load(str(folder)).train) == before
    (folder / "train/dog/a.tiff").rename(folder / "train/dog/z.tiff")
    assert gp.fingerprint(gp.load(str(folder)).train) != before


def test_without_a_test_part_a_fifth_of_every_class_is_taken_and_said(tmp_path, caplog):
    for number in range(30):
        write(tmp_path / "photos" / ("cat" if number < 20 else "dog") / f"{number:02d}.png", pixels(4, 4))
    with caplog.at_level(logging.WARNING):
        train, test = gp.load(str(tmp_path / "photos"))
    assert "6 of its 30 examples, a fifth of every class" in caplog.text
    assert train.input_shape == (1, 4, 4)
    assert train.y.bincount().tolist() == [16, 8]
    assert test.y.bincount().tolist() == [4, 2]
    both = torch.cat([train.x, test.x]).flatten(1)
    assert len(both.unique(dim=0)) == 30
    assert torch.equal(gp.load(str(tmp_path / "photos")).test.x, test.x)
    for data in (train, test):
        shown = [np.asarray(Image.open(tmp_path / "photos" / file)) for file in data.files]
        np.testing.assert_array_equal(data.x[:, 0].numpy(), np.stack(shown))


def test_valid_is_held_out_beside_test_and_tested_on_alone(photos, caplog):
    folder, _ = photos
    held = write(folder / "val" / "dog" / "v.png", pixels())
    prepared = prepare(DataConfig(str(folder)))
    assert prepared.split.holdout.tolist() == [5]
    np.testing.assert_array_equal(prepared.data.x[5].permute(1, 2, 0).numpy(), held)
    assert prepared.data.files[4:] == ("train/dog/b.png", "val/dog/v.png")
    assert len(prepared.test) == 2
    (folder / "test").rename(folder.parent / "elsewhere")
    assert gp.load(str(folder)).test.y.tolist() == [1]
    assert "valid is what is tested on" in caplog.text


def test_uneven_sizes_are_named_with_the_remedy_which_works(photos):
    folder, _ = photos
    write(folder / "train" / "cat" / "wide.png", pixels(6, 20, 3))
    write(folder / "test" / "cat" / "wide.png", pixels(6, 20, 3))
    with pytest.raises(DataError) as e:
        gp.load(str(folder))
    for said in (
        "2 sizes",
        "6x5 (7 images, train/cat/10.png)",
        "6x20 (2 images, train/cat/wide.png)",
        "--image-size 5",
    ):
        assert said in str(e.value)
    assert gp.load(str(folder), image_size=4).train.input_shape == (3, 4, 4)
    assert gp.load(str(folder), image_size="4x8").train.input_shape == (3, 4, 8)


def test_resizing_crops_at_the_centre(tmp_path):
    wide = np.zeros((8, 24, 3), np.uint8)
    wide[:, 8:16] = 200
    for name in ("a", "b"):
        write(tmp_path / "p" / "train" / name / "0.png", wide)
        write(tmp_path / "p" / "test" / name / "0.png", wide)
    train, _ = gp.load(str(tmp_path / "p"), image_size=8)
    assert train.x.unique().tolist() == [200]


def test_grey_colour_palettes_alpha_and_sixteen_bits(tmp_path):
    folder = tmp_path / "p"
    grey = pixels(4, 4)
    deep = grey.astype(np.uint16) * 256
    write(folder / "train" / "a" / "grey.png", grey)
    write(folder / "train" / "b" / "deep.png", deep)
    write(folder / "test" / "a" / "0.png", grey)
    train, _ = gp.load(str(folder))
    assert train.input_shape == (1, 4, 4)
    assert torch.equal(train.x[0], train.x[1])
    colour = write(folder / "test" / "b" / "rgba.png", pixels(4, 4, 4))
    Image.fromarray(pixels(4, 4, 3)).quantize(8).save(folder / "test" / "b" / "palette.gif")
    train, test = gp.load(str(folder))
    assert train.input_shape == (3, 4, 4)
    assert all(torch.equal(train.x[0, channel], torch.from_numpy(grey)) for channel in range(3))
    np.testing.assert_array_equal(test.x[2].permute(1, 2, 0).numpy(), colour[..., :3])


def test_a_camera_held_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    for part, name in (("train", "a"), ("train", "b"), ("test", "a")):
        write(tmp_path / "p" / part / name / "0.jpg", pixels(8, 16, 3), exif=exif)
    assert gp.load(str(tmp_path / "p")).train.input_shape == (3, 16, 8)


def test_broken_images_are_all_named(photos):
    folder, _ = photos
    (folder / "train" / "cat" / "2.png").write_bytes(b"no image")
    whole = (folder / "train" / "dog" / "b.png").read_bytes()
    (folder / "train" / "dog" / "b.png").write_bytes(whole[:60])
    with pytest.raises(DataError, match=r"train/cat/2.png cannot be decoded .* and 1 more: train/dog/b.png"):
        gp.load(str(folder))


def test_files_that_are_no_images_are_left_out_and_said(photos, caplog):
    folder, _ = photos
    (folder / "train" / "cat" / "notes.txt").write_text("mine")
    (folder / "train" / "cat" / ".DS_Store").write_text("not mine")
    assert len(gp.load(str(folder)).train) == 5
    assert "train/cat/notes.txt" in caplog.text
    assert ".DS_Store" not in caplog.text


def test_folders_that_cannot_be_read(photos, tmp_path):
    folder, _ = photos
    write(folder / "test" / "fox" / "0.png", pixels())
    with pytest.raises(DataError, match="test has the classes cat, dog, fox; train has cat, dog"):
        gp.load(str(folder))
    (folder / "train" / "fox").mkdir()
    with pytest.raises(DataError, match="fox holds no images; add some, or remove the folder"):
        gp.load(str(folder))
    (folder / "train").rename(folder / "treasure")
    with pytest.raises(MissingData, match=r"has test, but no folder train"):
        gp.load(str(folder))
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingData, match=r"train/CLASS/\*\.png"):
        gp.load(str(tmp_path / "empty"))
    write(tmp_path / "one" / "images" / "0.png", pixels())
    with pytest.raises(DataError, match="one folder of images, images: that is one class"):
        gp.load(str(tmp_path / "one"))
    (tmp_path / "x.csv").write_text("a,b")
    with pytest.raises(DataError, match="not a Parquet file"):
        gp.load(str(tmp_path / "x.csv"))
    with pytest.raises(ConfigError, match="mnist5k comes as it is"):
        gp.load("mnist5k", image_size=8)
    for wrong in ("0", "a", "4x", "1x2x3"):
        with pytest.raises(ConfigError, match="give one number"):
            parse_size(wrong)


MODELS = """
import torch
class Net(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
            torch.nn.Linear(4, num_classes))
    def forward(self, x): return self.layers(x)
def fixed(): return Net(2)
def shaped(input_shape, num_classes): return Net(num_classes)
def greedy(a, b, c): return Net(2)
"""


def test_a_newcomers_path_from_photos_to_a_sequence(goldiprox, tmp_path, caplog):  # noqa: F811
    """A folder of pictures of two kinds and a model of one's own: run, with the remedies that messages name."""
    for number in range(60):
        kind, size = ("light", "dark")[number % 2], (24, 24 + 4 * (number % 3))
        picture = (pixels(*size, 3) // 2 + 100 * (number % 2)).astype(np.uint8)
        write(tmp_path / "photos" / kind / f"{number}.png", picture)
    (tmp_path / "mymodels.py").write_text(MODELS)
    command = ["run", "--data", "./photos", "--model", "mymodels:Net", "--device", "cpu", "--epochs", "2"]
    code, _, err = goldiprox(*command)
    assert code == 1
    assert "--image-size 24" in err
    code, _, err = goldiprox(*command, "--image-size", "24")
    assert code == 2
    assert "--candidates 4 --keep 1" in err
    code, out, err = goldiprox(*command, "--image-size", "24", "--candidates", "4", "--keep", "1")
    assert code == 0, err
    assert "12 of its 60 examples" in caplog.text
    sequence = gp.Sequence.open("runs/photos-001/sequence.arrow")
    assert sequence.header.config["data"]["image_size"] == "24"
    assert sequence.header.config["data"]["noise"] == 0.0  # nobody's own labels are damaged unasked
    follow_up = out.rpartition("Next: goldiprox ")[2].split()
    code, _, err = goldiprox(*follow_up)
    assert code == 0, err
    own = ["--suspects", "3", "--data", "./photos", "--image-size", "24"]
    code, out, err = goldiprox("inspect", "runs/photos-001/irreducible.arrow", *own, "--json")
    assert code == 0, err
    for suspect in json.loads(out)["suspects"]:
        assert (tmp_path / "photos" / suspect["file"]).parent.name == suspect["label_name"]
    code, out, _ = goldiprox("inspect", "runs/photos-001/irreducible.arrow", *own)
    assert ".png" in out
    code, _, err = goldiprox("verify", "runs/photos-001/sequence.arrow", "--data", "./photos", "--image-size", "16")
    assert code == 1
    assert "--image-size 24 there, 16 here" in err


@pytest.mark.parametrize("name", ["Net", "fixed", "shaped"])
def test_models_of_ones_own_take_what_they_take(tmp_path, monkeypatch, name):
    (tmp_path / "mymodels.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert gp.build(f"mymodels:{name}", (3, 8, 8), 2)(torch.zeros(1, 3, 8, 8)).shape == (1, 2)
    with pytest.raises(gp.ModelMismatch, match=r"a function of \(input_shape, num_classes\)"):
        gp.build("mymodels:greedy", (3, 8, 8), 2)


def test_a_small_cnn_says_how_small_is_too_small():
    with pytest.raises(gp.ModelMismatch, match="at least 22x22 pixels; these have 16x30"):
        gp.build("small_cnn", (3, 16, 30), 2)
    assert gp.build("small_cnn", (3, 22, 22), 2)(torch.zeros(1, 3, 22, 22)).shape == (1, 2)
