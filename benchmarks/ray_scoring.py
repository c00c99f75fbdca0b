"""What scoring on Ray costs: reading and scoring an example, starting, and the whole with one actor and with two.

GOLDIPROX_DATA=... python benchmarks/ray_scoring.py [--examples 20480]
"""

import argparse
import time

import numpy as np
import torch

import goldiprox as gp
from goldiprox.assessment import assess, passes_of
from goldiprox.data.parquet import ImageRows
from goldiprox.data.sources import training_files
from goldiprox.ray_scoring import RayScoring


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=20_480)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data, _ = gp.load("mnist")
    rows, model = ImageRows.of(training_files("mnist")), gp.build("mlp512", (1, 28, 28), 10)
    ids, block = np.arange(asked.examples), np.arange(passes_of("cpu"))
    start = time.perf_counter()
    rows.read(block)
    read = time.perf_counter() - start
    start = time.perf_counter()
    assess(model, data, block)
    scored = time.perf_counter() - start
    print(f"an example: {read / len(block) * 1e3:.3f} ms to read, {scored / len(block) * 1e3:.3f} ms to score")
    start = time.perf_counter()
    assess(model, data, ids)
    print(f"one process that holds the images: {time.perf_counter() - start:.1f} s for {len(ids):,}")
    for actors in (1, 2):
        moments = [time.perf_counter()]
        scoring = RayScoring(rows, actors=actors, on_block=lambda *_, seen=moments: seen.append(time.perf_counter()))
        scoring(model, data, ids, folder=None)
        first, last = moments[2] - moments[0], moments[-1] - moments[0]
        print(f"{actors} actors: {first:.1f} s until the first block, {last:.1f} s in all", flush=True)


if __name__ == "__main__":
    main()
