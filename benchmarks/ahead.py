"""What choosing ahead changes: equal picks, wrong labels among them, and the proxy's accuracy, with and without it.

GOLDIPROX_DATA=... python benchmarks/ahead.py [--data mnist] [--seeds 3]
"""

import argparse

import numpy as np
import torch

import goldiprox as gp
from goldiprox.analysis import share
from goldiprox.prepare import DataConfig
from goldiprox.settings import RunConfig
from goldiprox.stages import Stages

KEEP = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(asked.seeds):
        stages = Stages(RunConfig.paper(data=DataConfig(asked.data, noise=0.1), seed=seed, device="cpu"))
        table, _, _ = stages.irreducible()
        picks = []
        for ahead in (False, True):
            recording = gp.record(
                stages.build("mlp128", "proxy", seed),
                stages.data,
                irreducible=table,
                rule=gp.top_k(),
                ids=stages.prepared.split.train,
                keep=KEEP,
                epochs=20,
                seed=seed,
                ahead=ahead,
                evaluate=stages.evaluate(),
                eval_every=max(1, stages.steps // 20),
            )
            last = [e["accuracy"] for e in recording.history.evaluations][-2:]
            picks.append(recording.ids.reshape(-1, KEEP))
            wrong = share(recording.ids, stages.prepared.truth.corrupted)
            print(
                f"seed {seed}, ahead {ahead}: accuracy {np.mean(last):.4f}, wrong labels picked {wrong:.4f}", flush=True
            )
        same = np.array([len(np.intersect1d(a, b)) / KEEP for a, b in zip(*picks, strict=True)])
        print(f"seed {seed}: same picks {same.mean():.3f}, in the first 100 steps {same[:100].mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
