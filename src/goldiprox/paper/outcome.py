"""What a figure or table leaves: numbers, pictures, and one sentence on the paper's claim."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from goldiprox.artifacts import check_folder
from goldiprox.outputs import write_json
from goldiprox.storage import write_atomically


@dataclass
class Outcome:
    """One figure or table.

    Attributes:
        name: As on the command line.
        claim: What the paper says.
        found: What came out.
        checks: The parts of the claim, each with whether it came out.
        numbers: Everything the picture shows.
        pictures: Draw functions by file name.
        notes: What a reader must know: what differs from the paper.
        seconds: What the runs behind it took when they were made.
    """

    name: str
    claim: str
    found: str
    checks: dict[str, bool]
    numbers: dict[str, Any]
    pictures: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        return all(self.checks.values())

    @property
    def sentence(self) -> str:
        if self.holds:
            verdict = "Holds"
        else:
            missed = "; ".join(name for name, came_out in self.checks.items() if not came_out)
            verdict = f"{'Holds in part' if any(self.checks.values()) else 'Does not hold'}. Not so here: {missed}"
        return f"The paper: {self.claim}. Here: {self.found}. {verdict}."


def publish(outcome: Outcome, folder: Path, about: Mapping[str, Any]) -> list[Path]:
    """Writes JSON, sentence and pictures (PNG and PDF), and gives the files.

    Args:
        outcome: What to write.
        folder: Where to.
        about: Command, hardware, versions, seeds and duration.
    """
    check_folder(folder)
    head = {"name": outcome.name, "sentence": outcome.sentence, "holds": outcome.holds, "checks": outcome.checks}
    body = json.loads(json.dumps(outcome.numbers, default=float))
    path = folder / f"{outcome.name}.json"
    write_json(path, head | dict(about) | {"notes": outcome.notes, "numbers": body})
    files = [path, folder / f"{outcome.name}.md"]
    lines = [outcome.sentence, *outcome.notes, _imprint(about)]
    write_atomically(files[1], ("\n\n".join(lines) + "\n").encode())
    for name, draw in outcome.pictures.items():
        figure = draw()
        caption = "\n".join([*outcome.notes, _imprint(about)])
        figure.supxlabel(caption, fontsize=6.5, color="dimgrey")
        for suffix in ("png", "pdf"):
            files.append(folder / f"{name}.{suffix}")
            # Without a date in it, drawing the same numbers again gives the same file.
            metadata = {"CreationDate": None} if suffix == "pdf" else {}
            figure.savefig(files[-1], dpi=160, metadata=metadata)
    return files


def _imprint(about: Mapping[str, Any]) -> str:
    made_with = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return f"{about['command']} | {about['hardware']} | {made_with} | seeds {', '.join(map(str, about['seeds']))}"
