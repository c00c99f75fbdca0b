import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from goldiprox import randomness
from goldiprox.randomness import permuted, subkey, uniforms


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


def orders(length: int, num_keys: int) -> torch.Tensor:
    """Whole orders, for as many keys."""
    return permuted(torch.arange(length), length, randomness.hash_ids(torch.arange(num_keys), 1))


def surprise(counts: torch.Tensor, freedom: int) -> float:
    """By how many standard deviations chi-square is above what counts that should be equal have by chance."""
    expected = counts.double().mean()
    return float(((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


class TestPermuted:
    @pytest.mark.parametrize("length", [*range(1, 41), 63, 64, 65, 99, 100, 101, 1_000, 4_097, 2**16 + 1, 10**6 + 3])
    def test_every_place_once(self, length):
        made = orders(length, 3)
        assert torch.equal(made.sort().values, torch.arange(length).expand(3, -1))
        assert length < 10 or len(torch.unique(made, dim=0)) == 3

    @pytest.mark.parametrize("length", [1, 2, 3, 7, 50, 64, 1_000])
    def test_is_a_feistel_network_with_cycle_walking(self, length):
        """As published, one position after another."""
        columns = math.isqrt(length - 1) + 1
        columns += columns % 2
        rows = -(-length // columns)

        def through(cell: int, key: int) -> int:
            row, column = divmod(cell, columns)
            for number in range(0, 24 if length < 64 else 8, 2):
                column = (column + (splitmix64(row, splitmix64(number, key)) >> 1)) % columns
                row = (row + (splitmix64(column, splitmix64(number + 1, key)) >> 1)) % rows
            cell = row * columns + column
            return cell if cell < length else through(cell, key)

        made = permuted(torch.arange(length), length, torch.tensor([5, 2**63 - 1]))
        assert made.tolist() == [[through(cell, key) for cell in range(length)] for key in (5, 2**63 - 1)]

    def test_any_positions_can_be_asked_for(self):
        length, keys = 10**9 + 7, torch.tensor([3, 4])
        positions = torch.tensor([0, 10**9, 17, 5 * 10**8])
        together = permuted(positions, length, keys)
        for number, position in enumerate(positions.tolist()):
            alone = permuted(torch.tensor([position]), length, keys[1:])
            assert alone.item() == together[1, number].item() < length

    @pytest.mark.parametrize("length", [2, 3, 4, 5, 6])
    def test_a_few_have_every_order_equally_often(self, length):
        made = orders(length, 100_000)
        names = (made * length ** torch.arange(length)).sum(1)
        counts = torch.unique(names, return_counts=True)[1]
        assert len(counts) == math.factorial(length)
        assert surprise(counts, len(counts) - 1) < 4

    @pytest.mark.parametrize("length", [7, 8, 9, 17, 31, 63, 64, 65, 100])
    def test_every_id_everywhere_and_beside_every_other_equally_often(self, length):
        made = orders(length, 40_000)
        places = torch.stack([made[:, position].bincount(minlength=length) for position in range(length)])
        assert surprise(places, (length - 1) ** 2) < 5
        apart = ~torch.eye(length, dtype=torch.bool).flatten()
        row = math.isqrt(length - 1) + 1  # neighbours in a row of the grid, in a column, at the ends
        for one, other in [(0, 1), (0, row + row % 2), (length - 2, length - 1), (0, length - 1)]:
            pairs = (made[:, one] * length + made[:, other]).bincount(minlength=length**2)[apart]
            assert surprise(pairs, len(pairs) - 1) < 5

    @pytest.mark.parametrize("length", [50_000, 99_225, 10**6])
    def test_neighbours_are_not_alike(self, length):
        for order in orders(length, 4):
            for lag in (1, math.isqrt(length - 1) + 1):
                steps = (order[lag:] - order[:-lag]) % length
                assert surprise((steps * 100 // length).bincount(minlength=100), 99) < 5
                together = torch.stack([order[lag:], order[:-lag]]).double()
                assert abs(float(torch.corrcoef(together)[0, 1])) < 5 / math.sqrt(length)

    def test_keys_are_not_alike(self):
        made = orders(10_000, 40).double()
        related = torch.corrcoef(made) - torch.eye(40)
        assert related.abs().max() < 5 / math.sqrt(10_000)

    def test_no_value_is_looked_at(self):
        """A tensor without values: looking at one is an error, and on a GPU it would be a wait."""
        keys = torch.zeros(3, dtype=torch.int64, device="meta")
        assert permuted(torch.arange(64, device="meta"), 10**7, keys).shape == (3, 64)


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
