"""Finished runs: what is kept comes back, what differs is made again."""

import numpy as np
import pytest
import torch

from goldiprox.store import Kept, Store

CPU = torch.device("cpu")


def test_what_is_kept_comes_back(tmp_path):
    store = Store(tmp_path / "runs", CPU)
    key = store.key("select", {"seed": 1})
    assert store.get(key) is None
    store.put(key, {"seed": 1}, Kept({"accuracy": [0.5]}, {"a": np.arange(3)}))
    kept = store.get(key)
    assert kept is not None
    assert kept.numbers == {"accuracy": [0.5]}
    assert kept.arrays["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("suffix", [".npz", ".arrow"])
def test_a_run_of_which_a_file_is_gone_is_made_again(tmp_path, suffix):
    store = Store(tmp_path, CPU)
    key = store.key("select", {})
    store.path(key, ".arrow").write_bytes(b"recorded")
    store.put(key, {}, Kept({}, {"a": np.arange(3)}, store.path(key, ".arrow")))
    assert store.get(key) is not None
    store.path(key, suffix).unlink()
    assert store.get(key) is None


def test_every_setting_and_the_version_of_runs_make_another_key(tmp_path, monkeypatch):
    store = Store(tmp_path, CPU)
    keys = [store.key("a", {"x": 1}), store.key("a", {"x": 2}), store.key("b", {"x": 1})]
    monkeypatch.setattr("goldiprox.store.RUNS", 10**6)
    keys.append(store.key("a", {"x": 1}))
    assert len(set(keys)) == 4


def test_only_what_is_missing_is_made_and_each_is_kept_as_soon_as_it_is_done(tmp_path):
    store, made = Store(tmp_path, CPU), []

    def make(seeds):
        made.append(list(seeds))
        if 3 in seeds:
            raise RuntimeError("broken off")
        return [Kept({"accuracy": float(seed)}) for seed in seeds]

    def runs(seeds):
        found = store.found_or_made("run", seeds, lambda seed: {"seed": seed}, make, together=2)
        return [kept.numbers["accuracy"] for kept in found]

    assert runs([1]) == [1.0]
    with pytest.raises(RuntimeError, match="broken off"):
        runs([0, 1, 2, 3])
    assert made == [[1], [0, 2], [3]]
    assert runs([2, 1, 0]) == [2.0, 1.0, 0.0]
    assert len(made) == 3
