import pytest
import torch

from goldiprox.bench.reading import forget_peak
from goldiprox.bench.scale import measured


@pytest.mark.skipif(not forget_peak(), reason="this system does not tell how much memory a process has held")
def test_a_recording_takes_no_memory_that_grows_with_the_data():
    """Sorting all ids once an epoch took 75 bytes an example; a block of candidates takes some 5 MB in all."""
    _, megabytes = measured(400_000, torch.device("cpu"))
    assert megabytes < 15
