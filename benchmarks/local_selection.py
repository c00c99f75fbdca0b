"""How much of what is kept is the same when each of several ranks keeps its own best: the table in docs/scale.md.

A proxy trains on the best of all candidates; at every step the choice that R ranks would have made with the same
weights, each of its share, is laid beside it. One process plays all ranks.

    python benchmarks/local_selection.py
"""

import torch

import goldiprox as gp
from goldiprox.prepare import DataConfig, prepare

RANKS, EPOCHS = (2, 4, 8, 32), 20


def main() -> None:
    torch.set_num_threads(1)
    made = prepare(DataConfig(noise=0.1))
    config = gp.HoldoutConfig(max_epochs=10)
    table, *_ = gp.irreducible_losses(lambda fold: model(fold), made.data, made.split, config=config)
    proxy = model(0)
    optimizer = torch.optim.AdamW(proxy.parameters(), lr=1e-3)
    select = gp.Selector(keep=32, irreducible=table)
    rule, shares = gp.top_k(), {ranks: [] for ranks in RANKS}
    steps = EPOCHS * (len(made.split.train) // 320)
    for step, ids in enumerate(gp.CandidateSampler(made.split.train, 320, steps=steps).batches()):
        batch = gp.Batch(ids, *made.data.gather(ids))
        scores = select.score(proxy, batch, step).scores.detach()
        best = rule(scores, ids, 32, 0)
        for ranks in RANKS:
            parts = torch.arange(len(ids)).chunk(ranks)
            own = torch.cat([rows[rule(scores[rows], ids[rows], 32 // ranks, 0)] for rows in parts])
            shares[ranks].append(torch.isin(own, best).float().mean().item())
        kept = batch.take(best)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(proxy(kept.x), kept.y).backward()
        optimizer.step()
    for ranks, found in shares.items():
        mean = sum(found) / len(found)
        print(f"{ranks} ranks: {mean:.3f} of the picks are the same ({min(found):.3f} to {max(found):.3f} a step)")


def model(seed: int) -> torch.nn.Module:
    return gp.build("mlp128", (1, 28, 28), 10, seed=seed)


if __name__ == "__main__":
    main()
