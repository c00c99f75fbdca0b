"""Shapes in signatures are checked while the tests run; small data and models that many tests share."""

import importlib.util
import os

from jaxtyping import install_import_hook

# Before anything imports goldiprox. The modules whose signatures state shapes; elsewhere our own checks of bad
# input are what is to be tested, and must be reached.
SHAPED = ("randomness", "data.batch", "data.resident", "acquisition", "rules", "selection")
if importlib.util.find_spec("beartype"):  # in the dev extra; a borrowed GPU machine may lack it
    install_import_hook([f"goldiprox.{name}" for name in SHAPED], "typechecking.checker")

import hypothesis  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

import goldiprox as gp  # noqa: E402
from goldiprox.irreducible import describe  # noqa: E402

hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("default")
if "PYTEST_XDIST_WORKER" in os.environ:  # one core each
    torch.set_num_threads(1)

NUM_CLASSES = 4
REAL_DATA = os.environ.get("GOLDIPROX_DATA")  # read once: tests of the command line hide it


def make_blobs(length: int = 400, seed: int = 0) -> gp.TensorData:
    """Points around four centres: learnt in a few steps."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(length) % NUM_CLASSES
    centres = torch.tensor([[2.0, 2.0], [-2.0, 2.0], [-2.0, -2.0], [2.0, -2.0]])
    x = centres[y] + torch.randn(length, 2, generator=generator)
    return gp.TensorData(x, y, num_classes=NUM_CLASSES, name="blobs")


def make_mlp(seed: int = 0, *, num_inputs: int = 2, num_outputs: int = NUM_CLASSES, dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(num_inputs, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, num_outputs))


def make_irreducible(data: gp.TensorData, ids: np.ndarray | None = None) -> gp.IrreducibleLosses:
    """Some plausible losses: distinct, known for the given ids."""
    values = torch.full((len(data),), torch.nan)
    known = torch.arange(len(data)) if ids is None else torch.as_tensor(ids)
    values[known] = (known.float() * 0.37) % 1.0
    return gp.IrreducibleLosses(values, data=describe(data))


@pytest.fixture
def blobs() -> gp.TensorData:
    return make_blobs()


@pytest.fixture
def irreducible(blobs: gp.TensorData) -> gp.IrreducibleLosses:
    return make_irreducible(blobs)


@pytest.fixture
def real_data() -> str:
    if not REAL_DATA or not os.path.isdir(REAL_DATA):
        pytest.skip("needs real data: set GOLDIPROX_DATA to the folder that holds mnist/ and cifar10/")
    return REAL_DATA


@pytest.fixture
def global_state():
    """A function that tells whether any global generator moved since the test began."""
    before = (torch.get_rng_state(), np.random.get_state()[1].copy())  # noqa: NPY002

    def unchanged() -> bool:
        numpy_state = np.random.get_state()[1]  # noqa: NPY002
        return torch.equal(torch.get_rng_state(), before[0]) and np.array_equal(numpy_state, before[1])

    return unchanged
