"""How a step runs: one operation after another, or as a CUDA graph."""

from typing import Literal, Protocol

from goldiprox.engine.eager import Eager as Eager
from goldiprox.engine.feeds import Given as Given
from goldiprox.engine.feeds import loading_processes as loading_processes
from goldiprox.engine.feeds import on_device as on_device
from goldiprox.engine.graph import Feed as Feed
from goldiprox.engine.graph import Graph as Graph
from goldiprox.engine.step import Trainer as Trainer

EngineName = Literal["auto", "eager", "graph", "loader"]
"""
* ``graph``: whole steps as CUDA graphs, on data that lies on the GPU.
* ``eager``: one operation after another, on data that lies on the device, or in this process.
* ``loader``: one operation after another, data through a ``DataLoader``.
* ``auto``: the first of these that can.
"""


class Engine(Protocol):
    """Runs steps."""

    done: int
    trained: list[int]  # examples so far, for each model

    def advance(self, limit: int) -> int:
        """Does, or starts, up to `limit` steps, and gives how many; none at the end."""
        ...

    def drain(self) -> None:
        """Waits for what was begun, and looks at it."""
        ...

    def close(self) -> None: ...
