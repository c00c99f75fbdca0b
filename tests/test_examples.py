"""Examples and the README's code are run as they stand."""

import difflib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def run(*args, cwd) -> str:
    environment = os.environ | {"MPLBACKEND": "agg"}  # figures are drawn, and shown to nobody
    done = subprocess.run([sys.executable, *map(str, args)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that the examples ask for, made by the commands they name."""
    folder = tmp_path_factory.mktemp("examples")
    run("-m", "goldiprox", "irreducible", "--holdout", "0", "--folds", "2", cwd=folder)
    run("-m", "goldiprox", "select", "--holdout", "0", "--irreducible", "irreducible.arrow", cwd=folder)
    return folder


@pytest.mark.parametrize("example", sorted(p.name for p in EXAMPLES.glob("*.py")))
def test_examples_run(example, folder):
    said = run(EXAMPLES / example, cwd=folder)
    assert "wrong labels: 9.0% of the data" in said if example == "wrong_labels.py" else "accuracy" in said
    assert len((EXAMPLES / example).read_text().splitlines()) < 60


def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    """Its cells as one script: a kernel would bring forty packages to do the same."""
    notebook = json.loads((EXAMPLES / "tour.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells), "clear the outputs before a commit"
    code = ["".join(cell["source"]) for cell in cells]
    figures = "print(len(plt.get_fignums()), 'figures')"
    (tmp_path / "tour.py").write_text("\n\n".join([*code, figures]))
    said = run("tour.py", cwd=tmp_path)
    by = {name: float(share) for share, name in re.findall(r"([\d.]+)% by ([\w ]+)", said)}
    assert by["reducible loss"] < by["chance"] < by["high loss"]
    assert "3 figures" in said


def code(name: str) -> list[str]:
    """The lines of an example without its docstring."""
    text = (EXAMPLES / name).read_text()
    return text.partition('"""\n\n')[2].splitlines()


@pytest.mark.parametrize(("name", "num_lines"), [("replay.py", 1), ("select_online.py", 3)])
def test_how_many_lines_of_a_plain_loop_change(name, num_lines):
    diff = list(difflib.ndiff(code("plain_loop.py"), code(name)))
    assert sum(line.startswith("+ ") for line in diff) == num_lines
    assert sum(line.startswith("- ") for line in diff) <= num_lines


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


PAGES = ["README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("name", [n for n in PAGES if blocks(n, "python")])
def test_the_code_of_a_page_runs_in_order(name, folder, tmp_path):
    for path in folder.glob("*.arrow"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "page.py").write_text("\n".join(blocks(name, "python")))
    run("page.py", cwd=tmp_path)
