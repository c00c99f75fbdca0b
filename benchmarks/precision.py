"""How far other precisions and engines choose other examples, and whether that matters.

python benchmarks/precision.py [--data mnist cifar10] [--seeds 3] [--out precision.json]

Every recording is compared with that of the graph engine in fp32 from the same weights, step by step: the share of
equal picks over the whole run, in its first 100 steps and in its last quarter; and the proxy's accuracy.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

import goldiprox as gp
from goldiprox.artifacts import versions
from goldiprox.data import Source
from goldiprox.engine import EngineName
from goldiprox.forward import Precision
from goldiprox.prepare import DataConfig, prepare

PROXIES = {"mnist": ("mlp128", 20), "cifar10": ("small_cnn", 40)}
KEEP = 32
RUNS: dict[str, tuple[Precision, EngineName]] = {
    "fp32": ("fp32", "graph"),
    "fp32 again": ("fp32", "graph"),
    "fp32, eager": ("fp32", "eager"),
    "tf32": ("tf32", "graph"),
    "bf16": ("bf16", "graph"),
}


def compare(name: str, seed: int, source: Source) -> dict[str, dict[str, float]]:
    """All runs of one seed."""
    prepared = prepare(DataConfig(data=name, noise=0.1, data_seed=seed), source=source)
    data, test = prepared.data, prepared.test
    if data.x.shape[1] > 1:
        data, test = data.channels_last(), test.channels_last()
    proxy, epochs = PROXIES[name]

    def make(weights: int) -> torch.nn.Module:
        model = gp.build(proxy, data.input_shape, 10, seed=weights, device="cuda")
        return model.to(memory_format=torch.channels_last) if data.x.shape[1] > 1 else model  # type: ignore[call-overload]

    table = gp.irreducible_losses(lambda _: make(100 + seed), data, prepared.split, seed=seed)[0]
    results, expected = {}, np.empty(0)
    for label, (precision, engine) in RUNS.items():
        start = time.perf_counter()
        recording = gp.record(
            make(seed),
            data,
            irreducible=table,
            rule=gp.top_k(),
            ids=prepared.split.train,
            epochs=epochs,
            keep=KEEP,
            seed=seed,
            engine=engine,
            config=gp.TrainingConfig(precision=precision),
            evaluate=gp.evaluate_on(test),
        )
        seconds, ids = time.perf_counter() - start, recording.ids.reshape(-1, KEEP)
        expected = ids if label == "fp32" else expected
        same = np.array([len(np.intersect1d(a, b)) / KEEP for a, b in zip(expected, ids, strict=True)])
        results[label] = {
            "same": float(same.mean()),
            "same, first 100 steps": float(same[:100].mean()),
            "same, last quarter": float(same[-(len(same) // 4) :].mean()),
            "accuracy": recording.history.final["accuracy"],
            "wrong labels": float(prepared.truth.mislabelled[recording.ids].mean()),
            "seconds": seconds,
        }
        figures = ", ".join(f"{key} {value:.4f}" for key, value in results[label].items())
        print(f"{name}, seed {seed}, {label}: {figures}", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(PROXIES), choices=list(PROXIES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result: dict[str, object] = {"device": torch.cuda.get_device_name(0), "versions": versions()}
    for name in arguments.data:
        source = gp.load(name)  # once: decoding takes longer than all runs
        result[name] = [compare(name, seed, source) for seed in range(arguments.seeds)]
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
