import pickle
import warnings
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import goldiprox as gp
from conftest import make_blobs
from goldiprox.data import as_batch, iterate, labels_of, require_fingerprint
from goldiprox.data.fingerprint import NUM_SAMPLED
from goldiprox.errors import DataError, FingerprintMismatch


class Items(Dataset):
    """A map-style data set of a list, with nothing else."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, id):
        return self.items[id]


def test_loaders_collate_ids_with_any_structure():
    pair = Items([(torch.full((2,), float(i)), i % 3) for i in range(6)])
    batch = next(iter(DataLoader(gp.WithIds(pair), batch_size=4)))
    assert isinstance(batch, gp.Batch)
    assert batch.ids.tolist() == [0, 1, 2, 3]
    assert batch.y.tolist() == [0, 1, 2, 0]

    towers = Items([(torch.tensor([i]), torch.tensor([-i]), 1.5 * i) for i in range(4)])
    batch = next(iter(DataLoader(gp.WithIds(towers), batch_size=4)))
    assert [x.flatten().tolist() for x in batch.x] == [[0, 1, 2, 3], [0, -1, -2, -3]]
    assert batch.y.tolist() == [0, 1.5, 3, 4.5]

    text = Items([{"input_ids": torch.tensor([i, i]), "mask": torch.tensor(1), "label": i} for i in range(3)])
    batch = next(iter(DataLoader(gp.WithIds(text), batch_size=3)))
    assert set(batch.x) == {"input_ids", "mask"}
    assert batch.y.tolist() == [0, 1, 2]
    kept = batch.take(torch.tensor([2, 0]))
    assert kept.ids.tolist() == [2, 0]
    assert kept.x["input_ids"].tolist() == [[2, 2], [0, 0]]

    alone = next(iter(DataLoader(gp.WithIds(Items([torch.tensor(i) for i in range(3)])), batch_size=3)))
    assert len(alone.y) == 0


def test_what_is_no_tensor_is_selected_too():
    items = Items([{"text": f"t{i}", "n": torch.tensor(i)} for i in range(5)])
    batch = next(iter(DataLoader(gp.WithIds(items), batch_size=5)))
    kept = batch.take(torch.tensor([3, 1]))
    assert kept.x == {"text": ["t3", "t1"], "n": kept.x["n"]}
    assert kept.x["n"].tolist() == [3, 1]


def test_items_of_other_shapes():
    from collections import UserDict

    assert gp.WithIds(Items([UserDict(a=1, labels=2)]))[0][1:] == ({"a": 1}, 2)
    assert gp.WithIds(Items([(5,)]))[0][1:] == (5, ())
    assert gp.WithIds(TensorDataset(torch.ones(1, 2)))[0].y == ()


def test_inputs_become_float32_and_labels_int64():
    data = gp.TensorData(torch.zeros(4, 2, dtype=torch.float64), torch.zeros(4, dtype=torch.int32), num_classes=2)
    x, y = data.gather(torch.tensor([1]))
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)


def test_a_split_of_the_users_own():
    items = Items([(i % 2, torch.tensor([float(i)])) for i in range(4)])  # label first
    batch = next(iter(DataLoader(gp.WithIds(items, split=lambda item: (item[1], item[0])), batch_size=4)))
    assert batch.y.tolist() == [0, 1, 0, 1]


def test_batches_without_ids_are_refused():
    loader = DataLoader(TensorDataset(torch.zeros(4, 2), torch.zeros(4)), batch_size=2)
    with pytest.raises(DataError, match=r"gp\.WithIds"):
        as_batch(next(iter(loader)))
    ratings = Items([(user, item, 4.5) for user, item in ((7, 1), (7, 2), (9, 1))])
    with pytest.raises(DataError, match="got list"):  # users are no ids
        as_batch(next(iter(DataLoader(ratings, batch_size=3))))
    with pytest.raises(DataError, match="map-style"):
        gp.WithIds(iter([1, 2]))


def test_ids_of_a_subset():
    data = make_blobs()
    with pytest.warns(UserWarning, match=r"Subset\(gp\.WithIds\(data\), indices\)"):
        gp.WithIds(Subset(data, range(50, 100)))
    assert next(iter(DataLoader(Subset(gp.WithIds(data), range(50, 100)), batch_size=2))).ids.tolist() == [50, 51]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (batch,) = iterate(Subset(data, range(50, 100)), [[0, 1]], device="cpu")
    assert batch.ids.tolist() == [0, 1]  # it is the base data set here


class TestTaking:
    """Examples lie along the first dimension, or are refused: never a part of one for another."""

    ids, rows = torch.arange(4), torch.tensor([2, 0])

    @pytest.mark.parametrize(
        "x",
        [
            (torch.zeros(9, 2), torch.tensor([0, 2, 5, 7])),  # all examples in one, and where they begin
            torch.zeros(5, 4, 2),  # time first
            torch.tensor(3.0),
            {"x": torch.zeros(4, 2), "scale": torch.zeros(1)},
            nn.utils.rnn.pack_sequence([torch.zeros(2, 2)] * 4),
        ],
    )
    def test_what_has_no_row_for_each_example(self, x):
        with pytest.raises(DataError, match="a batch of 4 examples holds a tensor of shape .* first dimension"):
            gp.Batch(self.ids, x, self.ids).take(self.rows)

    def test_a_list_of_tensors_of_any_length(self):
        kept = gp.Batch(self.ids, [torch.full((n,), n) for n in (1, 2, 3, 4)], self.ids).take(self.rows)
        assert [x.tolist() for x in kept.x] == [[3, 3, 3], [1]]

    def test_named_tuples_stay_what_they_are(self):
        class Inputs(NamedTuple):
            left: torch.Tensor
            right: torch.Tensor

        kept = gp.Batch(self.ids, Inputs(self.ids, -self.ids), self.ids).take(self.rows)
        assert isinstance(kept.x, Inputs)
        assert kept.x.right.tolist() == [-2, 0]


def test_a_collate_function_of_the_users_own():
    items = Items([{"text": "a" * (id + 1), "mood": id % 2} for id in range(6)])

    def lengths(items):
        return {"length": torch.tensor([len(item["text"]) for item in items]), "y": [item["mood"] for item in items]}

    data = gp.WithIds(items, collate=lengths)
    (batch,) = iterate(data, [[4, 1]], device="cpu")
    assert batch.ids.tolist() == [4, 1]
    assert batch.x["length"].tolist() == [5, 2]
    assert batch.y == [0, 1]
    with pytest.raises(DataError, match=r"ids 0, 1 cannot be collated: 'no'\. .*collate="):
        gp.WithIds(items, collate=lambda items: items[0]["no"]).collate([data[0], data[1]])
    plain = gp.WithIds(Items([(torch.zeros(2), 0)] * 3))
    assert plain.collate([plain[2], plain[1]]).ids.tolist() == [2, 1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resident_and_loaded_batches_are_bit_identical(num_workers, global_state):
    x = torch.randint(0, 256, (50, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = gp.TensorData(x, torch.arange(50) % 7, num_classes=7, mean=(0.1, 0.2, 0.3), std=(0.3, 0.2, 0.1))
    batch_ids = [[3, 1, 49], torch.tensor([0, 7]), np.array([5])]
    resident = list(iterate(data, batch_ids, device="cpu"))
    loaded = list(iterate(data, batch_ids, device="cpu", num_workers=num_workers))
    for a, b in zip(resident, loaded, strict=True):
        assert all(torch.equal(s, t) for s, t in zip(a, b, strict=True))
    expected = (x[[3, 1, 49]].float() / 255 - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / torch.tensor(
        [0.3, 0.2, 0.1]
    ).view(3, 1, 1)
    torch.testing.assert_close(resident[0].x, expected)
    assert global_state()


def test_data_that_does_not_fit_stays_where_it_is(monkeypatch):
    data = make_blobs()
    assert data.resident("cpu") is data
    floats = gp.TensorData(data.x, data.x[:, 0])
    assert floats.resident("meta") is floats.resident("meta") is not floats
    assert not pickle.loads(pickle.dumps(data))._copies
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * data.x.nbytes, 0))
    assert data.resident("cuda").x.device.type == "cpu"  # labels on top: over half of what is free


def test_labels_outside_the_classes_name_the_examples():
    y = torch.tensor([0, 1, 2, 3, -1, 9])
    with pytest.raises(DataError, match=r"3 labels are outside the 3 classes.*ids 3, 4, 5 have labels 3, -1, 9"):
        gp.TensorData(torch.zeros(6, 2), y, num_classes=3)
    with pytest.raises(DataError, match="must be integers"):
        gp.TensorData(torch.zeros(6, 2), y.float(), num_classes=3)
    with pytest.raises(DataError, match="5 inputs but 6 targets"):
        gp.TensorData(torch.zeros(5, 2), y)


class Noisy(Items):
    def __getitem__(self, id):
        return torch.randn(2) + np.random.normal(), id  # noqa: NPY002


def test_what_a_data_set_draws_depends_on_the_batch_alone(global_state):
    data, ids = Noisy(range(60)), np.arange(60).reshape(6, 10)

    def batches(**options):
        return [batch.x for batch in iterate(data, ids[options.get("first", 0) :], device="cpu", **options)]

    whole = torch.stack(batches())
    assert len(whole.unique()) == whole.numel()
    assert torch.equal(whole, torch.stack(batches(num_workers=2)))
    assert torch.equal(whole[4:], torch.stack(batches(first=4)))
    assert torch.equal(whole[3:], torch.stack(batches(first=3, num_workers=2)))
    assert not torch.equal(whole, torch.stack(batches(seed=1)))
    assert global_state()


class TestFingerprint:
    def test_is_the_same_for_the_same_data_and_on_every_machine(self):
        data = gp.TensorData(torch.arange(12, dtype=torch.uint8).view(4, 3), torch.tensor([0, 1, 0, 1]), num_classes=2)
        again = gp.TensorData(data.x.clone(), data.y.clone(), num_classes=2)
        golden = "sha256:aad1e28208a06acd7f8799227888cce6ac682717821bd006606b6920cd282a0d"
        assert gp.fingerprint(data) == gp.fingerprint(again) == golden

    @pytest.mark.parametrize("make", [make_blobs, lambda: TensorDataset(*make_blobs().gather(torch.arange(400)))])
    def test_changes_with_order_labels_and_inputs(self, make):
        def parts(data):
            return (data.x, data.y) if isinstance(data, gp.TensorData) else data.tensors

        prints = {gp.fingerprint(make())}
        for change in ("swap", "label", "input", "shorter"):
            data = make()
            x, y = parts(data)
            if change == "swap":
                x[[4, 8]], y[[4, 8]] = x[[8, 4]], y[[8, 4]]  # two examples of one class
            elif change == "label":
                y[17] = (y[17] + 1) % 4
            elif change == "input":
                x[399, 1] += 1e-3
            else:
                data = Subset(data, range(399))
            prints.add(gp.fingerprint(data))
        assert len(prints) == 5

    def test_of_any_data_set_covers_labels_and_a_sample_of_items(self):
        class Labelled(Items):
            def __init__(self, length, changed=None):
                super().__init__([(np.float32([i]), i % 5) for i in range(length)])
                self.targets = [i % 5 for i in range(length)]
                if changed is not None:
                    self.targets[changed] += 1

        length = 2 * NUM_SAMPLED + 1
        prints = [gp.fingerprint(Labelled(length, changed)) for changed in (None, None, 0, 1, length - 1)]
        assert prints[0] == prints[1]
        assert len(set(prints)) == 4
        assert gp.fingerprint(gp.WithIds(Labelled(10))) == gp.fingerprint(Labelled(10))

    def test_of_images_text_and_nested_items(self):
        from PIL import Image

        def make(pixel):
            image = Image.new("L", (2, 2), pixel)
            return Items([(image, {"text": "a", 3: [1, None, b"x"], "half": torch.ones(2, dtype=torch.bfloat16)})])

        assert gp.fingerprint(make(1)) == gp.fingerprint(make(1)) != gp.fingerprint(make(2))

    def test_random_augmentation_is_refused_with_the_remedy(self):
        class Augmented(Items):
            def __getitem__(self, id):
                return np.random.default_rng().normal(), 0

        with pytest.raises(DataError, match=r"random augmentation.*method fingerprint\(\)"):
            gp.fingerprint(Augmented([0] * 5))

        class Named(Augmented):
            def fingerprint(self):
                return "mine"

        assert gp.fingerprint(Named([0] * 5)) == "mine"

    def test_unknown_items_are_refused_with_the_remedy(self):
        with pytest.raises(DataError, match="fingerprint of a object"):
            gp.fingerprint(Items([object()]))

    def test_require_says_what_differs(self):
        data = make_blobs()
        expected = {"fingerprint": gp.fingerprint(data), "length": len(data)}
        require_fingerprint(data, expected, "x.arrow")
        with pytest.raises(FingerprintMismatch, match=r"x\.arrow was made from a data set of 400 .* has 300"):
            require_fingerprint(make_blobs(300), expected, "x.arrow")
        with pytest.raises(FingerprintMismatch, match="same length, other labels, order or inputs"):
            require_fingerprint(make_blobs(seed=1), expected, "x.arrow")


def test_labels_are_found_where_data_sets_keep_them():
    blobs = make_blobs()
    assert labels_of(blobs)[:5].tolist() == [0, 1, 2, 3, 0]
    assert labels_of(Subset(blobs, [3, 5])).tolist() == [3, 1]
    assert labels_of(TensorDataset(torch.zeros(3, 1), torch.tensor([2, 0, 1]))).tolist() == [2, 0, 1]
    assert labels_of(TensorDataset(torch.zeros(3, 1), torch.rand(3))) is None
    assert labels_of(Items([1, 2])) is None


def test_channels_last_changes_the_memory_and_nothing_else():
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (6, 3, 5, 4), dtype=torch.uint8, generator=generator)
    data = gp.TensorData(x, torch.arange(6), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    last = data.channels_last()
    ids = torch.tensor([4, 0, 4])
    taken = last.gather(ids)[0]
    assert torch.equal(taken, data.gather(ids)[0])
    assert taken.is_contiguous(memory_format=torch.channels_last)
    assert gp.fingerprint(last) == gp.fingerprint(data)
    assert last.to("cpu").is_channels_last
    with pytest.raises(gp.DataError, match="no channels"):
        make_blobs().channels_last()
