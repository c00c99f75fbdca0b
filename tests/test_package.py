"""Rules about the package itself."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import goldiprox as gp

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "goldiprox"
FRAMEWORKS = (
    "accelerate",
    "datasets",
    "huggingface_hub",
    "lightning",
    "pytorch_lightning",
    "torchdata",
    "transformers",
)
TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio", "cleanlab")
HEAVY = ("matplotlib", "mlxtend", "ray", "pandas", "sklearn", "PIL", "typer", "rich", *FRAMEWORKS, *TRACKERS)
EVERY_NAME = "import goldiprox as gp\nfor name in gp.__all__: getattr(gp, name)"


def imported_by(statement: str) -> list[str]:
    """Which heavy packages a fresh interpreter holds after a statement."""
    code = f"import sys\n{statement}\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_importing_goldiprox_imports_nothing_heavy():
    assert imported_by("import goldiprox") == []
    assert imported_by(EVERY_NAME) == []


def test_public_names_are_imported_when_they_are_used():
    assert len(gp.__all__) > 50
    assert set(gp.__all__) <= set(dir(gp))
    for name in gp.__all__:
        assert not (PACKAGE / f"{name}.py").exists(), f"gp.{name} would be the module once that is imported"
    names = {}
    exec("from goldiprox import *", names)
    assert names["Sequence"] is gp.Sequence
    assert gp.data.iterate
    with pytest.raises(AttributeError, match="no attribute 'sequense'"):
        _ = gp.sequense  # type: ignore[attr-defined]


def test_a_missing_framework_is_named_with_what_installs_it():
    extras = {"accelerate": "accelerate", "datasets": "hf", "hub": "hf", "huggingface": "hf", "lightning": "lightning"}
    code = f"""
import importlib, sys
from goldiprox.errors import MissingExtra
sys.modules |= dict.fromkeys({FRAMEWORKS!r})
for name in {list(extras)!r}:
    try:
        importlib.import_module("goldiprox.integrations." + name)
    except MissingExtra as e:
        print(e)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    assert len(said) == len(extras)
    for line, (module, extra) in zip(said, extras.items(), strict=True):
        assert line.startswith(f"goldiprox.integrations.{module} needs ")
        assert line.endswith(f"pip install 'goldiprox[{extra}]'")


def test_the_test_of_imports_can_fail():
    assert imported_by("import goldiprox, matplotlib, PIL") == ["matplotlib", "PIL"]


def layers() -> list[str]:
    """The modules in their order, from the page that states it."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    listing = text.partition("<!-- layers -->")[2].partition("```\n")[2].partition("```")[0]
    return re.findall(r"^(\w+)(?:\.py|/)", listing, flags=re.MULTILINE)


def imports_of(path: Path) -> set[str]:
    """The top-level parts of goldiprox that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "goldiprox" else [f"goldiprox.{a.name}" for a in node.names]
        found |= {n.split(".")[1] for n in names if n.startswith("goldiprox.")}
    return found


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def wrong_imports(order: list[str]) -> list[str]:
    rank = {name: number for number, name in enumerate(order)}
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        part = part_of(path)
        if part in ("__init__", "__main__"):
            continue
        for other in imports_of(path):
            if other != part and rank[other] >= rank[part]:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {other}")
    return wrong


def test_modules_import_only_from_modules_above_them():
    order = layers()
    assert {part_of(p) for p in PACKAGE.rglob("*.py")} - {"__init__", "__main__"} == set(order)
    assert wrong_imports(order) == []


def test_the_test_above_can_fail_too():
    order = layers()
    assert "loop.py imports data" in wrong_imports(order[::-1])


def test_no_module_is_too_long_to_read():
    long = {p.name: n for p in PACKAGE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 450}
    assert long == {}


def test_nothing_touches_global_random_state_or_pickles():
    banned = re.compile(
        r"np\.random\.(?!default_rng|Generator)|^import random|torch\.manual_seed|pickle|torch\.load\b", re.M
    )
    for path in set(PACKAGE.rglob("*.py")) - {PACKAGE / "randomness.py"}:  # which puts back what it sets
        assert not banned.findall(path.read_text()), path


def test_the_readme_shows_the_tree_as_it_is():
    readme = (ROOT / "README.md").read_text()
    listed = set(re.findall(r"^\s+([\w/]+(?:\.py|/))\s{2,}\S", readme, flags=re.MULTILINE))
    expected = {p.name if p.is_file() else f"{p.name}/" for p in PACKAGE.iterdir() if not p.name.startswith("_")}
    expected -= {"py.typed"}
    assert expected <= listed, expected - listed


@pytest.mark.parametrize("name", ["README.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))])
def test_links_lead_somewhere(name):
    path = ROOT / name
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), f"{name} links to {target}"
