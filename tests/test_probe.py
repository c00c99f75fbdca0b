"""How alike the reducible losses of a model and of its proxy are ordered."""

import numpy as np
import pytest

from conftest import make_blobs, make_irreducible, make_mlp
from goldiprox.analysis import spearman
from goldiprox.forward import call
from goldiprox.moments import KEY, watching
from goldiprox.probe import NUM_PROBED, Probe


def watched(data, models, ids):
    evaluate = watching(lambda model: {}, data, ids)
    return [evaluate(model)[KEY] for model in models]


def test_rank_correlation_of_a_model_with_its_proxy():
    data = make_blobs()
    ids, table, models = np.arange(0, 400, 2), make_irreducible(data), [make_mlp(seed) for seed in range(3)]
    losses = watched(data, models, ids)
    probe, handed = Probe(data, ids, losses, table), []
    evaluate, on_record = probe.of_model(lambda model: {"accuracy": 1.0}, handed.append)
    floor = table.values.numpy()[ids]
    expected = spearman(losses[0].numpy() - floor, losses[1].numpy() - floor)
    assert evaluate(models[1]) == {"accuracy": 1.0, "rank_correlation": pytest.approx(expected)}
    assert -1 <= expected < 0.99
    for step in range(2):  # of a continued run: records, no evaluations
        on_record({"step": step})
    assert evaluate(models[2])["rank_correlation"] == pytest.approx(1.0)
    on_record({"step": 2})
    assert evaluate(models[0]) == {"accuracy": 1.0}  # at which the proxy was not evaluated
    assert handed == [{"step": step} for step in range(3)]


def test_of_many_examples_some_are_probed_the_same_under_both():
    data = make_blobs(2000)
    table, model, ids = make_irreducible(data), make_mlp(), np.arange(2000)
    seen = []

    def counting(model, x):
        seen.append(len(x))
        return call(model, x)

    probe = Probe(data, ids, watched(data, [model], ids), table, forward=counting)
    evaluate, _ = probe.of_model(lambda model: {}, None)
    assert evaluate(model)["rank_correlation"] == pytest.approx(1.0)
    assert sum(seen) == NUM_PROBED
