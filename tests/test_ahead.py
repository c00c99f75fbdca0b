"""Choosing the next batch before the current one is trained on."""

import torch

import goldiprox as gp
from conftest import make_blobs, make_irreducible, make_mlp
from test_training import SETTINGS, same_weights


def recorded(**settings):
    data, proxy = make_blobs(), make_mlp()
    return gp.record(proxy, data, irreducible=make_irreducible(data), ahead=True, **(SETTINGS | settings)), proxy


def test_scores_come_from_the_weights_before_the_last_update():
    data, model = make_blobs(), make_mlp()
    table = make_irreducible(data)
    select = gp.Selector(gp.reducible_loss, irreducible=table, keep=SETTINGS["keep"], rule=gp.top_k())
    sampler = gp.CandidateSampler(table.ids, SETTINGS["candidates"], steps=SETTINGS["steps"])
    optimizer = SETTINGS["config"].optimizer(model)
    batches = [gp.Batch(ids, *data.gather(ids)) for ids in sampler.batches()]
    kept, chosen = select(model, batches[0]), []
    for following in [*batches[1:], None]:
        chosen.append(kept.ids)
        after = select(model, following) if following else None
        loss = torch.nn.functional.cross_entropy(model(kept.x), kept.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept = after
    recording, proxy = recorded(rule=gp.top_k())
    assert recording.ids.tolist() == torch.cat(chosen).tolist()
    assert same_weights(proxy, model)


def test_it_chooses_otherwise_than_fresh_scores_do_and_says_so(tmp_path):
    data = make_blobs()
    fresh = gp.record(make_mlp(), data, irreducible=make_irreducible(data), **SETTINGS)
    recording, _ = recorded(out=tmp_path / "s.arrow")
    assert recording.ids[: SETTINGS["keep"]].tolist() == fresh.ids[: SETTINGS["keep"]].tolist()
    assert recording.digest != fresh.digest
    assert gp.Sequence.open(tmp_path / "s.arrow", data=data).header.config["ahead"] is True
    assert recording.history.cost.examples_scored == fresh.history.cost.examples_scored


def test_a_replay_ends_as_the_proxy_did(tmp_path):
    _, proxy = recorded(out=tmp_path / "s.arrow")
    data, again = make_blobs(), make_mlp()
    gp.replay(again, data, gp.Sequence.open(tmp_path / "s.arrow", data=data), config=SETTINGS["config"])
    assert same_weights(proxy, again)


def test_evaluations_hold_the_figures_of_the_scores_that_were_chosen_by():
    data = make_blobs()
    settings = {"evaluate": gp.evaluate_on(data), "eval_every": 1}
    fresh = gp.record(make_mlp(), data, irreducible=make_irreducible(data), **SETTINGS, **settings).history.evaluations
    recording, _ = recorded(**settings)
    assert [e.keys() for e in recording.history.evaluations] == [e.keys() for e in fresh]
    assert recording.history.evaluations[0]["score_p50"] == fresh[0]["score_p50"]  # both from the first weights
    assert recording.history.evaluations[-1]["score_p50"] != fresh[-1]["score_p50"]
