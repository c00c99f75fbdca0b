"""One rank of tests/test_ranks.py: runs a scenario and writes what it saw to OUT/rank-N.json."""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).parent))

import goldiprox as gp
import goldiprox.ranks as ranks_module
from conftest import make_blobs, make_irreducible, make_mlp
from goldiprox.ranks import Ranks

CANDIDATES, KEEP, STEPS = 80, 8, 30
RULES = {
    "top_k": gp.top_k(),
    "discounted_top_k": gp.discounted_top_k(0.3),
    "floored": gp.floored(gp.discounted_top_k(0.3), beyond=0.2),
    "gumbel_top_k": gp.gumbel_top_k(1.0),
    "mix": gp.mix(0.5),
}


def with_batch_norm() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))


def recorded(out: Path, proxy: nn.Module | None = None, *, steps: int = STEPS, alone: bool = False, **settings):
    data = make_blobs()
    proxy = None if alone else proxy or make_mlp(0)
    recording = gp.record(
        proxy,
        data,
        irreducible=make_irreducible(data),
        candidates=CANDIDATES,
        keep=KEEP,
        steps=steps,
        out=out,
        config=gp.TrainingConfig(lr=1e-2),
        **settings,
    )
    return recording, proxy


def weights(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def select_all(folder: Path, group) -> dict:
    """Everything that does not fail."""
    ranks = Ranks(group)
    seen = {"digests": {}, "weights": {}, "bytes": {}}
    counted = []
    gather = dist.all_gather

    def counting(out, values, group=None):
        counted.append(values.nbytes)
        return gather(out, values, group=group)

    dist.all_gather = counting
    for name, rule in RULES.items():
        before, counted[:] = ranks.bytes_sent, []
        recording, proxy = recorded(folder / f"{name}.arrow", make_mlp(ranks.rank), rule=rule, group=ranks)
        seen["digests"][name], seen["weights"][name] = recording.digest, weights(proxy)
        seen["bytes"][name] = sum(counted[-2 * STEPS :]) / STEPS
        assert ranks.size == 1 or ranks.bytes_sent - before >= sum(counted)
    dist.all_gather = gather
    recording, _ = recorded(folder / "norm.arrow", with_batch_norm(), columns=("score", "loss"), group=ranks)
    seen["digests"]["batch_norm"] = recording.digest
    recording, proxy = recorded(folder / "sharded.arrow", update="sharded", group=ranks)
    seen["weights"]["sharded"] = weights(proxy)
    seen["digests"]["uniform"] = recorded(folder / "uniform.arrow", acquisition=gp.uniform, group=ranks)[0].digest
    alone, _ = recorded(folder / "alone.arrow", alone=True, acquisition=gp.uniform, group=ranks)
    seen["digests"]["without a proxy"] = alone.digest
    before, counted[:] = ranks.bytes_sent, []
    dist.all_gather = counting
    recorded(folder / "local.arrow", scope="local", group=ranks, columns=("score",))
    dist.all_gather = gather
    recorded(folder / "local-uniform.arrow", acquisition=gp.uniform, scope="local", group=ranks)
    seen["bytes"]["local"] = sum(counted[-2 * STEPS :]) / STEPS
    seen["irreducible"] = table(ranks)
    seen["in a loop"] = loop(ranks)
    seen["refusals"] = refusals(folder / "refused", ranks) if ranks.size > 1 else {}
    return seen


def table(ranks: Ranks | None) -> str:
    """The digest of irreducible losses from two folds, over more examples than one pass takes."""
    data = make_blobs(9_000)
    split = gp.holdout_split(len(data), data.labels, holdout=0.0)
    config = gp.HoldoutConfig(max_epochs=1, training=gp.TrainingConfig(lr=1e-2))
    return gp.irreducible_losses(make_mlp, data, split, num_folds=2, config=config, group=ranks)[0].digest


def loop(ranks: Ranks) -> dict:
    """A loop of one's own: each rank loads its share, and gets its slice of what is kept."""
    data, model = make_blobs(), make_mlp(0)
    sampler = gp.CandidateSampler(np.arange(len(data)), CANDIDATES, steps=3)
    settings = {"keep": KEEP, "irreducible": make_irreducible(data), "group": ranks, "pieces": 4}
    sending = gp.Selector(**settings)
    fetching = gp.Selector(**settings, fetch=lambda ids: gp.Batch(ids, *data.gather(ids)))
    kept, values = [], []
    for ids in sampler.batches():
        ids = ids[ranks.part(CANDIDATES)]
        batch = gp.Batch(ids, *data.gather(ids))
        mine, same = sending(model, batch), fetching(model, batch)
        assert torch.equal(mine.ids, same.ids)
        assert torch.equal(mine.x, same.x)
        assert torch.equal(mine.y, same.y)
        kept.append(mine.ids.tolist())
        values.append(sending.chosen["score"].tolist())
    short = make_blobs(CANDIDATES // 2 if ranks.rank else CANDIDATES)  # a shorter batch on all but one rank
    ids = torch.arange(len(short)) + 100 * ranks.rank
    uneven = gp.Selector(gp.loss, keep=KEEP, group=ranks)(model, gp.Batch(ids, short.x, short.y))
    sent = ranks.bytes_sent
    local = gp.Selector(**{**settings, "scope": "local"})
    own = [local(model, shared(ids, ranks, data)).ids.tolist() for ids in sampler.batches()]
    assert ranks.bytes_sent == sent
    return {"kept": kept, "scores": values, "uneven": uneven.ids.tolist(), "local": own}


def shared(ids: torch.Tensor, ranks: Ranks, data: gp.TensorData) -> gp.Batch:
    """This rank's share of candidates."""
    ids = ids[ranks.part(CANDIDATES)]
    return gp.Batch(ids, *data.gather(ids))


def refusals(folder: Path, ranks: Ranks) -> dict:
    """What is refused, with which message, on this rank."""
    messages = {}

    def refused(name: str, call) -> None:
        try:
            call()
        except gp.GoldiproxError as e:
            messages[name] = f"{type(e).__name__}: {e}"

    refused("seed", lambda: recorded(folder / "a.arrow", seed=ranks.rank, group=ranks))
    refused("pieces", lambda: recorded(folder / "b.arrow", pieces=3, group=ranks))
    refused("candidates", lambda: recorded(folder / "c.arrow", pieces=6, group=ranks))
    refused("update", lambda: recorded(folder / "d.arrow", update="shared", group=ranks))
    refused("mode", lambda: recorded(folder / "e.arrow", with_batch_norm(), mode="train", group=ranks))
    data, model = make_blobs(), make_mlp(0)
    if ranks.rank == 1:
        data.x[7] = torch.nan
    ids = torch.arange(40) + 0
    batch = gp.Batch(ids, *data.gather(ids))
    refused("nan", lambda: gp.Selector(gp.loss, keep=KEEP, group=ranks)(model, batch))
    text = gp.Batch(ids, ["text"] * 40, ids)
    ranked = gp.Selector(lambda c: c.ids.float(), keep=KEEP, group=ranks)
    refused("text", lambda: ranked(model, text))
    return messages


def breaks(folder: Path, group) -> dict:
    """The last rank dies or hangs in the middle, where the environment says so; with a proxy, or without one."""
    how, at = os.environ.get("BREAKS", ""), int(os.environ.get("BREAKS_AT", "0"))
    ranks, alone = Ranks(group), "ALONE" in os.environ
    settings = {"alone": True, "acquisition": gp.uniform} if alone else {"rule": RULES["discounted_top_k"]}

    def on_step(step: int, latest) -> None:
        if how and ranks.rank == ranks.size - 1 and step == at:
            if how == "dies":
                os._exit(9)
            time.sleep(600)

    every = float(os.environ.get("EVERY", "0"))
    with gp.Checkpoints(folder / "checkpoint", every=every, group=ranks) as checkpoints:
        start = time.monotonic()
        try:
            recording, proxy = recorded(
                folder / "sequence.arrow",
                group=ranks,
                checkpoints=checkpoints,
                on_step=on_step,
                **settings,
            )
        except gp.RankLost as e:
            record = {"error": str(e), "ranks": e.ranks, "seconds": time.monotonic() - start}
            (folder / f"rank-{ranks.rank}.json").write_text(json.dumps(record))
            os._exit(1)
    return {"digest": recording.digest, "weights": weights(proxy) if proxy else []}


def train(folder: Path, group) -> dict:
    """The large model on rank slices of a sequence: in DDP, and sharded; stopped in the middle where STOP says so."""
    stop, data = int(os.environ.get("STOP", "0")), make_blobs()
    seen = {}
    for kind in ("ddp", "fsdp"):
        model = make_mlp(3)
        if kind == "ddp":
            model = nn.parallel.DistributedDataParallel(model)
        else:
            fully_shard(model[0])
            fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        sequence = gp.Sequence.open(
            folder / "sequence.arrow", data=data, rank=dist.get_rank(), world_size=dist.get_world_size()
        )
        start = gp.load_training(folder / kind, model, optimizer, sequence)
        for step in range(start, stop or len(sequence)):
            batch = gp.Batch(torch.from_numpy(sequence[step]), *data.gather(torch.from_numpy(sequence[step])))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch.x), batch.y).backward()
            optimizer.step()
        gp.save_training(folder / kind, model, optimizer, sequence, step=stop or len(sequence))
        seen[kind] = {"start": start, "weights": [p.full_tensor() if kind == "fsdp" else p for p in model.parameters()]}
        seen[kind]["weights"] = torch.cat([w.detach().flatten() for w in seen[kind]["weights"]]).tolist()
    return seen


def lost_in_training(folder: Path, group) -> dict:
    """The last rank dies in the middle of a backward pass, where the others wait for its gradients."""
    ranks, model, steps = Ranks(group), make_mlp(0), 0

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        nonlocal steps
        steps += 1
        if steps == 5 and ranks.rank == ranks.size - 1:
            os._exit(9)
        return gradient

    model[0].weight.register_hook(hook)
    start = time.monotonic()
    try:
        if os.environ["LOOP"] == "record":
            recorded(folder / "sequence.arrow", model, update="sharded", group=ranks)
        else:
            data, averaged = make_blobs(), nn.parallel.DistributedDataParallel(model)
            with gp.name_lost_ranks(group):
                for _ in range(9):
                    nn.functional.cross_entropy(averaged(data.x), data.y).backward()
    except gp.RankLost as e:
        seen = {"error": str(e), "ranks": e.ranks, "seconds": time.monotonic() - start}
        (folder / f"rank-{ranks.rank}.json").write_text(json.dumps(seen))
        os._exit(1)
    return {}


def ends_while_beating(folder: Path, group) -> dict:
    """The process ends while its thread is, almost always, inside the store."""
    ranks_module.BEAT_SECONDS = 1e-5
    made = [Ranks(group) for _ in range(8)]
    time.sleep(0.2)
    return {"ranks": len(made)}


def main() -> None:
    scenario, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=float(os.environ.get("TIMEOUT", "60"))))
    rank = dist.get_rank()
    seen = globals()[scenario](folder, dist.group.WORLD)
    (folder / f"rank-{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()
    if scenario == "train":  # threads of torch that FSDP leaves behind sometimes abort a process that ends
        os._exit(0)


if __name__ == "__main__":
    main()
