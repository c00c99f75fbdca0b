"""Sequences on the hub and as `datasets`, against a stand-in for the hub's HTTP interface."""

import io
import json

import datasets
import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from huggingface_hub import constants
from torch.utils.data import DataLoader

import goldiprox as gp
from conftest import make_blobs, make_mlp
from goldiprox.errors import ConfigError, CorruptFile, FingerprintMismatch, MissingFile
from goldiprox.integrations.datasets import kept_examples, to_dataset
from goldiprox.integrations.hub import FILE
from hub_stand_in import stand_in
from test_sequence import KEEP, STEPS, picks, write

REPO = "somebody/blobs-sequence"
# huggingface_hub hands files to httpx in a way that this announces the end of.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    for name, folder in {"HF_HUB_CACHE": "hub", "HF_ASSETS_CACHE": "assets"}.items():
        monkeypatch.setattr(constants, name, str(tmp_path / "cache" / folder))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # whose service is not stood in for
    huggingface_hub.utils.disable_progress_bars()
    with stand_in() as hub:
        yield hub
        huggingface_hub.close_session()
    huggingface_hub.utils.enable_progress_bars()


def push(hub, sequence, **settings):
    settings = {"made_from": "blobs | of the tests", "token": "secret", "endpoint": hub.endpoint, **settings}
    return sequence.push_to_hub(REPO, **settings)


@pytest.fixture
def recorded(tmp_path, blobs, irreducible):
    """A recording with more columns than ids."""
    out = tmp_path / "recorded.arrow"
    gp.record(
        make_mlp(0),
        blobs,
        irreducible=irreducible,
        candidates=80,
        keep=KEEP,
        steps=STEPS,
        columns=("score",),
        out=out,
        extra_config={"data": {"name": "/home/somebody/blobs"}},
    )
    return gp.Sequence.open(out, data=blobs)


def test_what_goes_up_comes_down(hub, recorded, blobs, tmp_path):
    address = push(hub, recorded)
    assert address.startswith(f"{hub.endpoint}/datasets/{REPO}/commit/")
    got = gp.Sequence.from_hub(REPO, data=blobs, endpoint=hub.endpoint)
    assert got.digest == recorded.digest
    assert np.array_equal(got.column("score"), recorded.column("score"))
    assert (got.header.data, got.header.parents) == (recorded.header.data, recorded.header.parents)
    loader = DataLoader(gp.WithIds(blobs), batch_sampler=got)
    assert [batch.ids.tolist() for batch in loader] == recorded.ids.reshape(STEPS, KEEP).tolist()


def test_an_order_of_chance_goes_up_as_it_is(hub, recorded, blobs):
    shuffled = recorded.shuffled(3, seed=4)
    push(hub, shuffled)
    pulled = gp.Sequence.from_hub(REPO, data=blobs, endpoint=hub.endpoint)
    assert pulled.ids.tolist() == shuffled.ids.tolist()
    assert (pulled.column("score") == shuffled.column("score")).all()
    assert pulled.header.config["shuffled"] == [{"window": 3, "seed": 4}]


def test_two_ranks_get_their_slices_from_the_hub(hub, recorded, blobs):
    push(hub, recorded)
    parts = [gp.Sequence.from_hub(REPO, blobs, endpoint=hub.endpoint, rank=r, world_size=2) for r in range(2)]
    assert [*parts[0][3], *parts[1][3]] == recorded[3].tolist()


def test_it_is_written_where_one_says_and_never_over_another_file(hub, recorded, tmp_path):
    push(hub, recorded)
    out = tmp_path / "mine.arrow"
    gp.Sequence.from_hub(REPO, endpoint=hub.endpoint, out=out)
    assert gp.Sequence.open(out).digest == recorded.digest
    before = out.read_bytes()
    with pytest.raises(gp.OutputExists):
        gp.Sequence.from_hub(REPO, endpoint=hub.endpoint, out=out)
    assert out.read_bytes() == before


def test_the_card_says_what_it_is(hub, recorded):
    push(hub, recorded, licence="cc0-1.0")
    text = hub.files(REPO)["README.md"].decode()
    card = huggingface_hub.DatasetCard(text)
    assert card.data.license == "cc0-1.0"
    assert "goldiprox" in card.data.tags
    for said in (
        r"blobs \| of the tests",
        recorded.header.data["fingerprint"],
        recorded.digest,
        recorded.header.parents["irreducible"],
        '`"reducible_loss"`',
        "The data itself is not here",
        "whose own licence applies",
        f"{STEPS} steps of {KEEP} ids",
    ):
        assert said in text
    assert "None was stated" not in text


def test_only_ids_leave_the_machine(hub, recorded):
    push(hub, recorded)
    files = hub.files(REPO)
    assert set(files) == {FILE, "README.md"}
    table = pq.read_table(io.BytesIO(files[FILE]))
    assert table.column_names == ["step", "id", "score"]
    assert table["step"].to_pylist() == np.repeat(np.arange(STEPS), KEEP).tolist()
    assert not any(b"/home/somebody" in content for content in files.values())
    assert recorded.header.config["data"]["name"] == "/home/somebody/blobs"


def test_datasets_reads_what_was_uploaded(hub, recorded, tmp_path):
    push(hub, recorded)
    (tmp_path / FILE).write_bytes(hub.files(REPO)[FILE])
    table = datasets.Dataset.from_parquet(str(tmp_path / FILE), cache_dir=str(tmp_path / "cache"))
    assert np.array_equal(table["id"], recorded.ids)


def test_a_new_version_replaces_the_old_and_both_can_be_had(hub, recorded, tmp_path):
    first = push(hub, recorded).rpartition("/")[2]
    other = gp.Sequence.open(write(tmp_path / "other.arrow"))
    push(hub, other)
    settings = {"endpoint": hub.endpoint}
    assert gp.Sequence.from_hub(REPO, **settings).digest == other.digest
    assert gp.Sequence.from_hub(REPO, revision=first, **settings).digest == recorded.digest


def test_other_data_is_refused(hub, recorded):
    push(hub, recorded)
    with pytest.raises(FingerprintMismatch, match="made from other data"):
        gp.Sequence.from_hub(REPO, data=make_blobs(seed=1), endpoint=hub.endpoint)


def test_what_is_not_there(hub, recorded):
    settings = {"endpoint": hub.endpoint}
    with pytest.raises(MissingFile, match=f"no {FILE} in the data set repository '{REPO}'"):
        gp.Sequence.from_hub(REPO, **settings)
    push(hub, recorded)
    with pytest.raises(MissingFile, match="at 'elsewhere'"):
        gp.Sequence.from_hub(REPO, revision="elsewhere", **settings)
    del hub.files(REPO)[FILE]
    with pytest.raises(MissingFile):
        gp.Sequence.from_hub(REPO, **settings)


def test_without_permission_nothing_is_made(hub, recorded):
    with pytest.raises(huggingface_hub.errors.HfHubHTTPError):
        push(hub, recorded, token="wrong")
    assert hub.commits == {}


def test_what_cannot_be_shared(hub, recorded, blobs, tmp_path):
    half = gp.Sequence.open(tmp_path / "recorded.arrow", rank=1, world_size=2)
    with pytest.raises(ConfigError, match="opened for rank 1 only"):
        push(hub, half)
    with gp.SequenceWriter(tmp_path / "growing.arrow", data=gp.describe(blobs), keep=KEEP) as writer:
        writer.append(torch.arange(KEEP))
        writer.flush()
        growing = gp.Sequence.open(tmp_path / "growing.arrow", follow=True)
        with pytest.raises(ConfigError, match="not complete"):
            push(hub, growing)
    assert hub.calls == []


def changed(content: bytes, *, about=None, **columns) -> bytes:
    """The same file with something else in it."""
    table = pq.read_table(io.BytesIO(content))
    metadata = json.loads(table.schema.metadata[b"goldiprox"])
    metadata = about(metadata) if about else metadata
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, values)
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    out = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"goldiprox": text}), out)
    return out.getvalue()


def of_header(**values):
    return lambda about: {**about, "header": {**about["header"], **values}}


DAMAGES = {
    "other ids": lambda c: changed(c, id=pa.array([1] * STEPS * KEEP, pa.uint16())),
    "ids beyond the data": lambda c: changed(c, about=of_header(data={"fingerprint": "sha256:0", "length": 300})),
    "gaps": lambda c: changed(c, id=pa.array([None] * STEPS * KEEP, pa.uint16())),
    "other types": lambda c: changed(c, id=pa.array([1.5] * STEPS * KEEP)),
    "text": lambda c: changed(c, id=pa.array(["a"] * STEPS * KEEP)),
    "no header": lambda c: changed(c, about=lambda about: {}),
    "header of text": lambda c: changed(c, about=lambda about: "no JSON"),
    "deep header": lambda c: changed(c, about=lambda about: "[" * 100_000),
    "other kind": lambda c: changed(c, about=of_header(kind="irreducible")),
    "keep of text": lambda c: changed(c, about=of_header(config={"keep": "8"})),
    "keep that does not divide": lambda c: changed(c, about=of_header(config={"keep": 7})),
    "negative keep": lambda c: changed(c, about=of_header(config={"keep": -8})),
    "unknown part": lambda c: changed(c, about=of_header(surprise=1)),
    "future format": lambda c: changed(c, about=of_header(format=2)),
    "cut off": lambda c: c[: len(c) // 2],
    "no Parquet": lambda c: b"hello",
    "empty": lambda c: b"",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_strangers_file_is_our_error(hub, recorded, blobs, tmp_path, damage):
    push(hub, recorded)
    files = hub.files(REPO)
    files[FILE] = DAMAGES[damage](files[FILE])
    with pytest.raises((CorruptFile, gp.UnsupportedFormat)):
        gp.Sequence.from_hub(REPO, data=blobs, endpoint=hub.endpoint, out=tmp_path / "got.arrow")
    assert not [path for path in tmp_path.iterdir() if "got" in path.name or "hub" in path.name]


def test_a_file_that_unfolds_to_much_more_is_refused(hub, recorded, monkeypatch):
    push(hub, recorded)
    monkeypatch.setattr("goldiprox.integrations.hub.SMALL", 1)
    monkeypatch.setattr("goldiprox.integrations.hub.MAX_EXPANSION", 0.1)
    with pytest.raises(CorruptFile, match="would take more than"):
        gp.Sequence.from_hub(REPO, endpoint=hub.endpoint)


def test_a_digest_is_no_way_out_of_the_cache(hub, recorded, tmp_path):
    """What is in the header decides on no path."""
    push(hub, recorded)
    aim = write(tmp_path / "aim.arrow")
    files = hub.files(REPO)
    files[FILE] = changed(files[FILE], about=lambda about: {**about, "digest": str(aim).removesuffix(".arrow")})
    with pytest.raises(CorruptFile, match="their digest differs"):
        gp.Sequence.from_hub(REPO, endpoint=hub.endpoint)


def test_the_same_ids_under_another_header_are_another_file(hub, recorded):
    push(hub, recorded)
    gp.Sequence.from_hub(REPO, endpoint=hub.endpoint)
    other = changed(hub.files(REPO)[FILE], about=of_header(data={"fingerprint": "sha256:0", "length": 400}))
    hub.commits[REPO]["f" * 40] = {FILE: other}
    assert gp.Sequence.from_hub(REPO, endpoint=hub.endpoint).header.data["fingerprint"] == "sha256:0"


class TestDatasets:
    @pytest.fixture
    def points(self, blobs):
        return datasets.Dataset.from_dict({"x": blobs.x.tolist(), "label": blobs.y.tolist()})

    def test_its_fingerprint_is_that_of_its_rows(self, points):
        mark = gp.fingerprint(points)
        assert gp.fingerprint(points.with_format("torch")) == mark
        assert gp.fingerprint(points.with_transform(lambda rows: {"x": rows["x"]})) == mark
        assert gp.fingerprint(points.select(range(len(points)))) == mark
        assert gp.fingerprint(gp.WithIds(points.with_format("numpy"))) == mark
        assert gp.fingerprint(points.shuffle(seed=0)) != mark
        flipped = points.add_column("y", points["label"]).map(
            lambda row, id: {"label": int(id == 3)}, with_indices=True
        )
        assert gp.fingerprint(flipped) != mark

    def test_every_label_counts(self):
        """Items are sampled above 1,000; labels are not."""
        labels = [0] * 5_000
        mark = gp.fingerprint(datasets.Dataset.from_dict({"x": [0.0] * 5_000, "label": labels}))
        labels[2_502] = 1
        assert gp.fingerprint(datasets.Dataset.from_dict({"x": [0.0] * 5_000, "label": labels})) != mark

    def test_it_is_recorded_and_replayed_as_it_is(self, points, irreducible, tmp_path):
        data, out = points.with_format("torch"), tmp_path / "points.arrow"
        settings = {"candidates": 80, "keep": KEEP, "steps": 30, "out": out}
        gp.record(make_mlp(0), data, acquisition=gp.loss, forward=lambda model, x: model(x["x"]), **settings)
        sequence = gp.Sequence.open(out, data=points)
        loader = DataLoader(data, batch_sampler=sequence)
        for ids, batch in zip(sequence, loader, strict=True):
            assert torch.equal(batch["x"], torch.tensor(points["x"][:])[ids])
        model = make_mlp(1)
        evaluate = gp.evaluate_on(data, forward=lambda model, x: model(x["x"]))
        history = gp.replay(model, data, sequence, forward=lambda model, x: model(x["x"]), evaluate=evaluate)
        assert history

    def test_labels_that_do_not_fit_are_noticed_before_training(self, points):
        with pytest.raises(gp.ModelMismatch, match="3 outputs, the labels have 4 classes"):
            settings = {"candidates": 80, "keep": KEEP, "steps": 3}
            model = make_mlp(0, num_outputs=3)
            data = points.with_format("torch")
            gp.record(model, data, acquisition=gp.loss, forward=lambda model, x: model(x["x"]), **settings)

    def test_a_sequence_as_columns(self, tmp_path):
        table = to_dataset(gp.Sequence.open(write(tmp_path / "s.arrow")))
        assert table.column_names == ["step", "id"]
        assert np.array_equal(np.array(table["id"]).reshape(STEPS, KEEP), picks())
        assert table["step"][:] == np.repeat(np.arange(STEPS), KEEP).tolist()

    def test_the_kept_examples(self, tmp_path, points, blobs):
        sequence = gp.Sequence.open(write(tmp_path / "s.arrow", data=gp.describe(points)), data=points)
        kept = kept_examples(sequence, points)
        assert kept["label"][:] == blobs.y[torch.from_numpy(picks().ravel())].tolist()
        with pytest.raises(FingerprintMismatch):
            kept_examples(sequence, points.shuffle(seed=0))
        half = gp.Sequence.open(tmp_path / "s.arrow", rank=0, world_size=2)
        with pytest.raises(ConfigError, match="rank 0 only"):
            to_dataset(half)
