"""SIGINT and SIGTERM: finish the step, save, stop."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from goldiprox.cli.console import failure, program
from goldiprox.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether a signal asked this process to stop, and which."""

    signum: int | None = None

    def __call__(self) -> bool:
        return self.signum is not None


stop = Stop()


@contextmanager
def graceful() -> Iterator[None]:
    """Lets the first signal ask the code inside to stop where it can be continued; a second one ends it at once."""
    before = {signum: signal.getsignal(signum) for signum in SIGNALS}

    def restore() -> None:
        for signum, handler in before.items():
            signal.signal(signum, handler)

    def ask(signum: int, _: object) -> None:
        stop.signum = signum
        restore()
        # Not through the console: the signal may have come while that was writing.
        os.write(2, b"\nfinishing this step, then saving; once more to stop at once\n")

    stop.signum = None
    for signum in SIGNALS:
        signal.signal(signum, ask)
    try:
        yield
    except Interrupted as e:
        failure(f"{e}. To go on: {_again()}", label="interrupted:")
        raise typer.Exit(128 + (stop.signum or signal.SIGINT)) from e
    except KeyboardInterrupt:
        failure(f"at once; to go on from the last checkpoint: {_again()}", label="interrupted:")
        raise
    finally:
        restore()


def _again() -> str:
    arguments = [a for a in sys.argv[1:] if a not in ("--force", "--resume")]
    return f"{program()} {shlex.join(arguments)} --resume"
