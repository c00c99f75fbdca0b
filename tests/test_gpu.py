"""What must hold on a CUDA device too. `make test-all` on a machine that has one."""

import pytest
import torch

import goldiprox as gp
from conftest import make_blobs, make_irreducible, make_mlp
from test_training import SETTINGS, WithNorm, same_weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def on_gpu():
    return make_blobs().to("cuda")


def test_a_proxy_replaying_its_own_sequence_ends_bit_identical(on_gpu, tmp_path):
    proxy, again = WithNorm().cuda(), WithNorm().cuda()
    before = torch.cuda.get_rng_state()
    gp.record(proxy, on_gpu, irreducible=make_irreducible(on_gpu), out=tmp_path / "s.arrow", **SETTINGS)
    gp.replay(again, on_gpu, gp.Sequence.open(tmp_path / "s.arrow", data=on_gpu), config=SETTINGS["config"])
    assert same_weights(proxy, again)
    assert torch.equal(before, torch.cuda.get_rng_state())


@pytest.mark.parametrize("rule", [gp.top_k(), gp.gumbel_top_k(1.0), gp.mix(0.5)])
def test_the_digest_does_not_depend_on_how_data_is_loaded(on_gpu, rule):
    def digest(data, **options):
        table = make_irreducible(make_blobs())
        return gp.record(make_mlp().cuda(), data, irreducible=table, rule=rule, **SETTINGS, **options).digest

    assert digest(on_gpu) == digest(on_gpu) == digest(make_blobs()) == digest(on_gpu, num_workers=2)


def test_what_is_made_of_ids_and_the_seed_agrees_with_the_cpu(on_gpu):
    def digest(model, data, acquisition, rule=None):
        table = make_irreducible(make_blobs())
        return gp.record(model, data, irreducible=table, acquisition=acquisition, rule=rule, **SETTINGS).digest

    for acquisition, rule in ((gp.uniform, None), (gp.irreducible_loss, gp.gumbel_top_k(0.5))):
        assert digest(make_mlp().cuda(), on_gpu, acquisition, rule) == digest(
            make_mlp(), make_blobs(), acquisition, rule
        )


def test_fingerprints_do_not_depend_on_the_device(on_gpu):
    assert gp.fingerprint(on_gpu) == gp.fingerprint(make_blobs())


def test_a_diverging_run_names_its_step(on_gpu):
    config = gp.TrainingConfig(lr=1e30)
    with pytest.raises(gp.NonFiniteError, match="not finite at step"):
        gp.record(make_mlp().cuda(), on_gpu, acquisition=gp.uniform, **(SETTINGS | {"config": config}))
