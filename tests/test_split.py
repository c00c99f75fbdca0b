import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import goldiprox as gp
from goldiprox.errors import ConfigError


@given(st.integers(10, 300), st.integers(1, 5), st.floats(0, 0.9), st.integers(0, 5))
def test_splits_are_disjoint_complete_and_stratified(length, num_classes, holdout, seed):
    labels = np.arange(length) * 7 % num_classes
    split = gp.holdout_split(length, labels, holdout=holdout, seed=seed)
    assert np.array_equal(np.union1d(split.train, split.holdout), np.arange(length))
    assert len(split.holdout) == round(holdout * length)
    for label in range(num_classes):
        expected = holdout * (labels == label).sum()
        assert abs((labels[split.holdout] == label).sum() - expected) <= 2


@given(st.integers(6, 200), st.integers(2, 6), st.integers(1, 4))
def test_folds_divide_the_ids_and_every_class(length, num_folds, num_classes):
    ids = np.arange(length) * 3
    labels = np.arange(length) % num_classes
    folds = gp.k_fold(ids, labels, num_folds=num_folds)
    assert np.array_equal(np.sort(np.concatenate(folds)), ids)
    for label in range(num_classes):
        counts = [np.isin(fold, ids[labels == label]).sum() for fold in folds]
        assert max(counts) - min(counts) <= 1


def test_splits_are_shuffled_and_seeded():
    a, b, c = (gp.holdout_split(1_000, seed=s) for s in (0, 0, 1))
    assert a.digest == b.digest != c.digest
    # Neither the first half nor every second example.
    assert 150 < np.isin(a.train, np.arange(500)).sum() < 350
    assert 150 < (a.train % 2).sum() < 350


def test_overlapping_empty_and_repeating_sides():
    with pytest.raises(ConfigError, match=r"overlap in 2 ids \(2, 3\)"):
        gp.Split(np.array([1, 2, 3]), np.array([2, 3, 4]))
    with pytest.raises(ConfigError, match="training side is empty"):
        gp.Split(np.array([], int), np.array([1]))
    with pytest.raises(ConfigError, match="twice"):
        gp.Split(np.array([1, 1]), np.array([2]))
    with pytest.raises(ConfigError, match=r"holdout is empty.*--folds"):
        gp.holdout_split(10, holdout=0).require_holdout()
    with pytest.raises(ConfigError, match=r"not in \[0, 1\)"):
        gp.holdout_split(10, holdout=1.0)
    with pytest.raises(ConfigError, match="1 folds"):
        gp.k_fold(np.arange(5), num_folds=1)


@pytest.mark.parametrize("shape", [(90,), (100, 1)])
def test_labels_that_are_not_one_for_each_example(shape):
    with pytest.raises(ConfigError, match=r"labels of shape .* for 100 examples"):
        gp.holdout_split(100, np.zeros(shape))
