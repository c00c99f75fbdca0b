"""What is published: the wheel and the source distribution, and the wheel installed away from this tree."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "goldiprox"
TESTS = ("test_randomness.py", "test_selection.py", "test_split.py")


def call(*command: object, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(folder: Path, out: Path, *targets: str) -> Path:
    pytest.importorskip("hatchling", reason="needs the extra dev")
    chosen = [part for target in targets for part in ("-t", target)]
    call(sys.executable, "-m", "hatchling", "build", "-d", out, *chosen, cwd=folder)
    return out


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("dist"), "sdist", "wheel")


def wheel_in(folder: Path) -> Path:
    (wheel,) = folder.glob("*.whl")
    return wheel


def files_of(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_the_package_and_all_that_it_reads(dist):
    files = files_of(wheel_in(dist))
    there = {p.relative_to(ROOT / "src").as_posix() for p in PACKAGE.rglob("*") if p.is_file()}
    expected = {name for name in there if "__pycache__" not in name}
    assert {name for name in files if ".dist-info/" not in name} == expected
    assert {"goldiprox/py.typed", "goldiprox/__init__.pyi", "goldiprox/report/uplot/LICENSE"} <= expected
    licences = sorted(name.partition("/licenses/")[2] for name in files if "/licenses/" in name)
    assert licences == ["LICENSE", "src/goldiprox/report/uplot/LICENSE"]


def test_the_source_distribution_makes_the_same_wheel(dist, tmp_path):
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    again = files_of(wheel_in(build(folder, tmp_path / "dist", "wheel")))
    assert again == files_of(wheel_in(dist))
    assert (folder / "mkdocs.yml").exists()
    assert (folder / "tests" / "conftest.py").exists()


@pytest.fixture(scope="module")
def installed(dist, tmp_path_factory) -> Path:
    """The programs of an environment with this wheel; its dependencies are those of the tests."""
    pytest.importorskip("pip")
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "env", symlinks=True)
    python = folder / "env" / "bin" / "python"
    options = ["--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    call(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel_in(dist), cwd=folder)
    packages = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    # A path in such a file comes after the environment's own packages, and editable installations there stay unseen.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python.parent


def test_the_installed_wheel_does_a_run(installed, tmp_path):
    where = call(installed / "python", "-c", "import goldiprox; print(goldiprox.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)
    version = (PACKAGE / "_version.py").read_text().partition('"')[2].partition('"')[0]
    assert call(installed / "goldiprox", "--version", cwd=tmp_path) == f"goldiprox {version}\n"

    pytest.importorskip("mlxtend", reason="needs the extra demo")
    said = call(installed / "goldiprox", "run", "--epochs", "1", "--out", "run", "--json", cwd=tmp_path)
    assert json.loads(said)["versions"]["goldiprox"] == version
    assert "uPlot" in (tmp_path / "run" / "report.html").read_text()


def test_tests_pass_on_the_installed_wheel(installed, tmp_path):
    for path in (ROOT / "tests").glob("*.py"):
        shutil.copy(path, tmp_path)
    with (tmp_path / "conftest.py").open("a") as file:
        file.write(f"\nassert gp.__file__.startswith({str(installed.parent)!r}), gp.__file__\n")
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    said = call(installed / "python", "-m", "pytest", *options, *TESTS, cwd=tmp_path)
    assert " passed" in said.splitlines()[-1]
