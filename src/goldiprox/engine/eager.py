"""Steps run as Python comes to them: any data, any model, any device."""

from collections.abc import Iterable
from functools import partial

from goldiprox.data import Batch
from goldiprox.engine.step import Trainer, check_finite
from goldiprox.watch import Watch


class Eager:
    """Trains on one batch after another.

    Args:
        trainer: The model and how it is trained.
        batches: What it is trained on, in order; taking one may score candidates with this very model.
        start: Steps done before.
    """

    def __init__(self, trainer: Trainer, batches: Iterable[Batch], *, start: int = 0):
        self.trainer, self.done, self.trained = trainer, start, [0]
        self._batches = iter(batches)
        self._watch = Watch(trainer.device)

    def advance(self, limit: int) -> int:  # noqa: ARG002
        """Does one step, or none at the end; gives how many it did."""
        batch = next(self._batches, None)
        if batch is None:
            return 0
        self.trainer.set_rates(self.done)
        losses = self.trainer.losses(batch)
        # On the CPU before the update, so that a failed step leaves the weights of the last good one.
        self._watch(partial(check_finite, self.done, batch.ids, losses.detach()))
        self.trainer.update(losses)
        self.done += 1
        self.trained[0] += batch.num_examples
        return 1

    def drain(self) -> None:
        """Waits for what was begun, and looks at it."""
        self._watch.finish()

    def close(self) -> None:
        pass
