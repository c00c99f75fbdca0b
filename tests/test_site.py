"""The documentation: builds without a warning, asks nothing of other servers, and says what the code says."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import goldiprox as gp
from conftest import make_blobs, make_irreducible, make_mlp
from goldiprox.acquisition import ACQUISITIONS
from goldiprox.rules import NAMES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def build(folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT, out)
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_in_the_site(site):
    made = {p.stem for p in site.glob("*.html")}
    assert {p.stem for p in DOCS.glob("*.md")} | {"index", "tour", "CHANGELOG", "CONTRIBUTING"} <= made


def test_reading_it_asks_nothing_of_other_servers(site):
    for page in site.glob("*.html"):
        text = page.read_text()
        assert re.findall(r'<(?:script|img|iframe|source)\b[^>]*src="(?:https?:)?//[^"]*', text) == []
        assert re.findall(r'<link\b[^>]*href="(?:https?:)?//[^"]*', text) == []
        assert re.findall(r"url\(['\"]?(?:https?:)?//[^)]*", text) == []


def test_pictures_outside_the_pages_folder_are_in_it(site):
    sources = re.findall(r'<img[^>]*src="([^"]+)"', (site / "paper.html").read_text())
    assert len(sources) > 10
    assert all((site / source).is_file() for source in sources)


def test_every_public_name_has_its_signature_and_text(site):
    text = (site / "api.html").read_text()
    anchors = set(re.findall(r'<h3 id="(?:[\w.]+\.)?(\w+)"', text))
    assert set(gp.__all__) - {"__version__"} <= anchors
    assert "Trains a model on what it selects, and writes down what that was." in text


def test_a_link_that_leads_nowhere_ends_the_build(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[a](index.md#nothing) [b](nowhere.md)")
    validation = "".join((ROOT / "mkdocs.yml").read_text().partition("\nvalidation:")[1:])
    (tmp_path / "mkdocs.yml").write_text(f"site_name: small\n{validation}")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    assert done.stderr.count("WARNING") == 2, done.stderr


def test_the_reference_lists_the_public_names():
    listed = re.findall(r"^::: goldiprox\.(?!integrations)(?:[\w.]+\.)?(\w+)$", (DOCS / "api.md").read_text(), re.M)
    assert len(listed) == len(set(listed))
    assert set(listed) == set(gp.__all__) - {"__version__"}


def cards(section: str) -> dict[str, str]:
    text = (DOCS / "methods.md").read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^### `(\w+)`\n(.*?)(?=^### |\Z)", text, re.M | re.S)
    assert len(found) == text.count("\n### ")
    return dict(found)


@pytest.mark.parametrize(("section", "names"), [("Acquisitions", [*ACQUISITIONS]), ("Rules", [*NAMES])])
def test_every_method_has_a_card(section, names):
    assert sorted(cards(section)) == sorted(names)
    for name, card in cards(section).items():
        assert re.findall(r"^- \*\*(.+?)\*\*: \S", card, re.M) == ["What", "When", "When not", "Cost", "Citation"], name


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_the_cost_on_a_card_is_what_is_paid(name):
    stated = re.search(r"\*\*Cost\*\*: (\d+) forward pass(?:es)? per candidate", cards("Acquisitions")[name])
    assert stated, name
    data = make_blobs(64)
    batch = gp.Batch(torch.arange(64), data.x, data.y)
    c = gp.Candidates(make_mlp(dropout=0.5), batch, keep=8, irreducible=make_irreducible(data))
    ACQUISITIONS[name](c)
    assert c.num_scored == int(stated[1]) * 64


def texts_of_the_code() -> list[str]:
    """All text in the package, the pieces between the values of a formatted one each by itself."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        found += [n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)]
    return [text for text in found if isinstance(text, str)]


def test_messages_in_the_faq_are_those_of_the_code():
    said = "\n".join(texts_of_the_code())
    quoted = re.findall(r"^> (.+)$", (DOCS / "faq.md").read_text(), re.M)
    assert len(quoted) > 20
    missing = [piece for quote in quoted for piece in re.split(r" ?\.\.\.[ ,;)]*", quote) if piece not in said]
    assert missing == []
