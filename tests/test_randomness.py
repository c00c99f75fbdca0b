import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from goldiprox import randomness
from goldiprox.randomness import subkey, uniforms


def splitmix64(position: int, key: int) -> int:
    """The published algorithm, in unbounded integers."""
    mask = (1 << 64) - 1
    z = (position * 0x9E3779B97F4A7C15 + key) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=20), st.integers(0, 2**63 - 1))
def test_hash_is_splitmix64(ids, key):
    hashed = randomness.hash_ids(torch.tensor(ids), key)
    assert [h % (1 << 64) for h in hashed.tolist()] == [splitmix64(i, key) for i in ids]


def test_derived_seeds_are_the_same_everywhere_and_differ_by_purpose():
    assert randomness.derive("candidates", 0, 1) == 4877902287837057217
    seeds = {randomness.derive(purpose, a, b) for purpose in ("x", "y") for a in range(10) for b in range(10)}
    assert len(seeds) == 200


def test_uniforms_are_uniform_and_open():
    u = randomness.uniforms(torch.arange(100_000), key=7)
    assert 0 < u.min() < 1e-4
    assert 1 - 1e-4 < u.max() < 1
    counts = torch.histc(u, bins=20, min=0, max=1)
    assert ((counts - 5_000).abs() < 5 * 5_000**0.5).all()


def test_uniforms_do_not_depend_on_company_or_order():
    ids = torch.tensor([5, 900, 17])
    together = randomness.uniforms(ids, 3)
    assert torch.equal(together.flip(0), randomness.uniforms(ids.flip(0), 3))
    assert torch.equal(together[1:2], randomness.uniforms(ids[1:2], 3))


def test_shuffle_is_a_permutation_that_changes_with_the_key():
    ids = torch.arange(1_000)
    one, two = randomness.shuffle(ids, 1), randomness.shuffle(ids, 2)
    assert torch.equal(one.sort().values, ids)
    assert not torch.equal(one, two)
    assert torch.equal(one, randomness.shuffle(ids, 1))


def test_seeded_restores_the_global_generator_even_after_an_error(global_state):
    with pytest.raises(RuntimeError), randomness.seeded(1):
        inside = torch.rand(3)
        raise RuntimeError
    assert global_state()
    with randomness.seeded(1):
        assert torch.equal(inside, torch.rand(3))


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40))
def test_keys_made_on_the_host_and_by_a_counting_device_are_the_same(key, step):
    counted = torch.tensor(step)
    assert subkey(key, step) == int(subkey(key, counted)) % 2**64
    ids = torch.tensor([0, 7, 2**40])
    assert torch.equal(uniforms(ids, subkey(key, step)), uniforms(ids, subkey(key, counted)))
    nested = subkey(subkey(key, step), 3)
    assert nested == int(subkey(subkey(key, counted), 3)) % 2**64
