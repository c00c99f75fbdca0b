"""Which figure or table is made by what, and the one way to make them all."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from goldiprox.artifacts import versions
from goldiprox.errors import UnknownName
from goldiprox.paper import tables
from goldiprox.paper.fig1 import fig1
from goldiprox.paper.fig2 import fig2
from goldiprox.paper.fig3 import fig3
from goldiprox.paper.fig4 import fig4
from goldiprox.paper.lab import Lab
from goldiprox.paper.outcome import Outcome, publish
from goldiprox.paper.settings import DIGITS, Plan
from goldiprox.paper.theory import theory
from goldiprox.prepare import DataConfig
from goldiprox.stages import Progress
from goldiprox.store import Store, hardware

CPU = torch.device("cpu")
ON_CPU = ("table1", "table2", "theory")
NAMES = ("table1", "table2", "fig1", "fig2", "fig3", "fig4", "theory")


def expand(name: str, plan: Plan) -> list[str]:
    """What a name on the command line stands for."""
    if name == "all":
        # The brute-force part of `theory` is made for digits; it says nothing new about other images.
        return [n for n in NAMES if n != "theory" or plan.data in DIGITS]
    if name not in NAMES:
        raise UnknownName("figure or table", name, (*NAMES, "all"))
    return [name]


def make(
    names: list[str], plan: Plan, out: Path, *, device: torch.device, command: str, progress: Progress
) -> Iterator[tuple[Outcome, list[Path]]]:
    """Makes figures and tables one after another, and gives each with its files.

    Runs are kept in ``out/runs``: figures share them, and a second call only draws.

    Args:
        names: Which.
        plan: How large.
        out: The folder.
        device: Where to train.
        command: As it was called, for the record.
        progress: Shows it.
    """
    lab = Lab(plan, Store(out / "runs", device), progress)
    makers = _makers(plan, Store(out / "runs", CPU), lab)
    for name in names:
        where = CPU if name in ON_CPU else device
        start = time.perf_counter()
        with one_thread(where):
            outcome = makers[name]()
            about = {
                "command": command,
                "data": plan.data,
                "quick": plan.quick,
                "hardware": hardware(where),
                "versions": versions(),
                "seeds": list(plan.seeds),
                "seconds": {"runs": round(outcome.seconds, 1), "this call": round(time.perf_counter() - start, 1)},
            }
            files = publish(outcome, out, about)
        yield outcome, files


def _makers(plan: Plan, store: Store, lab: Lab) -> dict[str, Callable[[], Outcome]]:
    """How each is made; `store` keeps what is computed on the CPU."""
    damaged = DataConfig(data=plan.data, data_dir=plan.data_dir, noise=0.1, white_noise=0.1)
    return {
        "table1": lambda: tables.table("table1"),
        "table2": lambda: tables.table("table2"),
        "fig1": lambda: fig1(lab),
        "fig2": lambda: fig2(lab),
        "fig3": lambda: fig3(lab),
        "fig4": lambda: fig4(lab),
        "theory": lambda: theory(store, damaged, plan.seeds, quick=plan.quick),
    }


@contextmanager
def one_thread(device: torch.device) -> Iterator[Any]:
    """Small models on a CPU: one thread is fastest on shared cores, and gives the same sums on every machine."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
