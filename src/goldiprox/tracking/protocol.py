"""What a tracker is, and how one is fed without holding up or ending a training run."""

import contextlib
import json
import logging
import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from goldiprox.errors import CorruptFile
from goldiprox.loop import OnRecord
from goldiprox.storage import write_atomically

_log = logging.getLogger(__name__)

FINISH_SECONDS = 30.0
"""How long the end of a run waits for a tracker."""
_MAX_WAITING = 1_000


class Tracker(Protocol):
    """Takes figures. One of yours is any object with these two methods."""

    def log(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Figures of a stage at a step; steps of a stage only grow."""
        ...

    def finish(self) -> None:
        """Nothing more will come."""
        ...


def curves(track: Tracker | None, stage: str, on_record: OnRecord | None = None) -> OnRecord | None:
    """What hands the evaluations of a stage to a tracker, and to whoever else wants them.

    Beside the figures of an evaluation the tracker gets ``points_per_second``, of training since the one before.
    """
    if track is None:
        return on_record
    before = {"examples": 0.0, "seconds": 0.0}

    def hand_on(record: dict[str, Any]) -> None:
        if on_record:
            on_record(record)
        values = {name: value for name, value in numbers(record).items() if name != "step"}
        taken = {name: values.get(name, 0.0) - last for name, last in before.items()}
        before.update({name: values.get(name, 0.0) for name in before})
        if taken["seconds"] > 0:
            values["points_per_second"] = taken["examples"] / taken["seconds"]
        track.log(stage, int(record["step"]), values)

    return hand_on


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among these values."""
    found = {k: float(v) for k, v in record.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return {name: value for name, value in found.items() if math.isfinite(value)}


class Trackers:
    """Several trackers as one."""

    def __init__(self, trackers: Sequence[Tracker]):
        self.trackers = list(trackers)

    def log(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        for tracker in self.trackers:
            tracker.log(stage, step, values)

    def finish(self) -> None:
        for tracker in self.trackers:
            tracker.finish()

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()


class Memory:
    """What a tracker must know to go on with the same curves: its run, how far each stage is, how much came in all.

    Args:
        path: A small JSON file beside the run.
        fresh: Forget what is there.
    """

    def __init__(self, path: Path, *, fresh: bool):
        self.path = path
        self.run: str | None = None
        self.steps: dict[str, int] = {}
        self.count = 0
        if fresh or not path.exists():
            path.unlink(missing_ok=True)
            return
        try:
            content = json.loads(path.read_text())
            self.run = None if content["run"] is None else str(content["run"])
            self.steps = {str(stage): int(step) for stage, step in content["steps"].items()}
            self.count = int(content["count"])
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise CorruptFile(f"{path} cannot be read ({e}); remove it, and the curves begin anew") from e

    def save(self) -> None:
        content = {"run": self.run, "steps": self.steps, "count": self.count}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, json.dumps(content, indent=2).encode())


class Background:
    """A tracker in a thread of its own: slow ones are not waited for, and one that fails is left out with a warning.

    A continued run hands over its earlier evaluations again; those that the tracker has are not repeated.

    Args:
        name: For the warning.
        make: Gives the tracker; called here, so that what is missing is said before training.
        memory: Which steps it has.
    """

    def __init__(self, name: str, make: Callable[[], Tracker], memory: Memory):
        self._name, self._memory = name, memory
        self._queue: queue.Queue[tuple[str, int, dict[str, float]] | None] = queue.Queue(_MAX_WAITING)
        self._failed = threading.Event()
        self._tracker: Tracker | None = None
        try:
            self._tracker = make()
            memory.save()
        except ImportError:
            raise
        except Exception as e:  # a server that does not answer, a key that is not there: not worth a training run
            self._give_up(e)
        self._thread = threading.Thread(target=self._work, name=f"tracking with {name}", daemon=True)
        self._thread.start()

    def log(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        if self._failed.is_set():
            return
        try:
            self._queue.put_nowait((stage, step, dict(values)))
        except queue.Full:
            self._give_up(TimeoutError(f"it is {_MAX_WAITING:,} evaluations behind"))

    def finish(self) -> None:
        if not self._thread.is_alive():
            return
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=FINISH_SECONDS)
        self._thread.join(FINISH_SECONDS)
        if self._thread.is_alive():
            self._give_up(TimeoutError(f"it was not done {FINISH_SECONDS:.0f} s after the run"))

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            stage, step, values = item
            if self._failed.is_set() or self._tracker is None or step <= self._memory.steps.get(stage, -1):
                continue
            try:
                self._tracker.log(stage, step, values)
                self._memory.steps[stage] = step
                self._memory.count += 1
                self._memory.save()
            except Exception as e:
                self._give_up(e)
        if self._tracker is not None:
            try:
                self._tracker.finish()
            except Exception as e:
                self._give_up(e)

    def _give_up(self, error: Exception) -> None:
        if not self._failed.is_set():
            self._failed.set()
            said = str(error).strip().splitlines()
            _log.warning("no more curves for %s (%s); the run goes on", self._name, said[0] if said else repr(error))
