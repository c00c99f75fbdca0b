"""Noticing that a framework divides batches among processes otherwise than they were recorded."""

import sys
from typing import Any

from goldiprox.errors import ConfigError


def refuse_divided_again(whole: bool) -> None:
    """Raises where Accelerate divides the batches of whoever calls this among its processes, but not as recorded.

    By default it gives whole batches to processes in turn, so that several of them become one step. A batch sampler is
    not told who iterates over it: that can only be read off the stack.

    Args:
        whole: Whether the batches are those of all processes.
    """
    frame = sys._getframe(1)
    while frame is not None:
        owner: Any = frame.f_locals.get("self")
        kind = type(owner).__name__
        if kind in ("BatchSamplerShard", "DataLoaderDispatcher"):
            state: Any = owner if kind == "BatchSamplerShard" else owner.state
            if state.num_processes > 1 and not (whole and owner.split_batches):
                what = "several batches would become one step" if whole else "each batch would be divided a second time"
                raise ConfigError(
                    f"accelerator.prepare divides batches among {state.num_processes} processes, so that {what}; make "
                    f"the loader with goldiprox.integrations.accelerate.loader(accelerator, data, batches). A sequence "
                    f"opened without rank= also comes out right with DataLoaderConfiguration(split_batches=True)"
                )
            return
        frame = frame.f_back
