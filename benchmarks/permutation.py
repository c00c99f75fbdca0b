"""The order of candidates: how many rounds it takes until it is as good as chance, and what it costs beside a sort.

    python benchmarks/permutation.py

For each number of things and rounds: the total variation of whole orders from equally likely ones (what chance alone
gives in brackets), and by how many standard deviations chi-square of (position, id), and of what stands at two
positions next to each other, is above what chance gives. Then microseconds a step of 320 candidates, one thread.
"""

import math
import time

import torch

import goldiprox as gp
from goldiprox import randomness

KEYS = 300_000


def surprise(counts: torch.Tensor, freedom: int) -> float:
    expected = counts.double().mean()
    return float(((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


def quality(length: int, rounds: int) -> str:
    randomness._ROUNDS = randomness._ROUNDS_OF_FEW = rounds
    made = randomness.permuted(torch.arange(length), length, randomness.hash_ids(torch.arange(KEYS), rounds))
    places = torch.stack([column.bincount(minlength=length) for column in made.T])
    pairs = (made[:, 0] * length + made[:, 1]).bincount(minlength=length**2)
    pairs = pairs[~torch.eye(length, dtype=torch.bool).flatten()]
    varied = ""
    if length < 8:
        number = math.factorial(length)
        counts = torch.unique((made * length ** torch.arange(length)).sum(1), return_counts=True)[1] / KEYS
        # Orders that never came count too.
        distance = ((counts - 1 / number).abs().sum() + (number - len(counts)) / number) / 2
        varied = f"  whole orders {distance:.4f} ({0.5 * math.sqrt(2 / math.pi * number / KEYS):.4f})"
    return f"places {surprise(places, (length - 1) ** 2):6.1f}  pairs {surprise(pairs, len(pairs) - 1):7.1f}{varied}"


def microseconds(length: int, *, by_sorting: bool, candidates: int = 320, at_least: int = 3_000) -> float:
    per_epoch = length // candidates
    num_epochs = -(-at_least // per_epoch)
    ids, start = torch.arange(length), time.perf_counter()
    if by_sorting:
        for epoch in range(num_epochs):
            order = ids[torch.argsort(randomness.hash_ids(ids, epoch), stable=True)]
            for step in range(per_epoch):
                order[step * candidates : (step + 1) * candidates]
    else:
        for _ in gp.CandidateSampler(ids, candidates, steps=num_epochs * per_epoch).batches():
            pass
    return (time.perf_counter() - start) / (num_epochs * per_epoch) * 1e6


if __name__ == "__main__":
    torch.set_num_threads(1)
    for power in (4, 5, 6):
        times = [
            (microseconds(10**power, by_sorting=False), microseconds(10**power, by_sorting=True)) for _ in range(6)
        ]
        ours, sort = (min(each) for each in zip(*times, strict=True))
        print(f"10^{power} ids: {ours:.1f} us a step, {sort:.1f} by sorting: {ours / sort:.2f}")
    for length in (3, 5, 6, 7, 8, 17, 31, 64, 100):
        for number in (4, 6, 8, 12, 24):
            print(f"{length:3d} things, {number:2d} rounds  {quality(length, number)}", flush=True)
