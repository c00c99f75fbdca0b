"""What the site has beyond the pages in this folder.

README, contributing and changelog are pages of it too, and so are the examples and the notebook. Pages link to files
outside this folder relative to where they stand, so that they read well wherever the repository is shown; here those
files are copied into the site, and links to folders become plain text.
"""

import json
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "benchmarks/results/speed_h200_202611.md": "speed.md",
    "benchmarks/results/speed_h200_202611_all.md": "speed-all.md",
    "benchmarks/results/speed_h200_202611_order.md": "speed-order.md",
    "benchmarks/results/files_cpu_202611.md": "large-files.md",
}
NOTEBOOK = "examples/tour.ipynb"
MADE = {"examples": "examples.md", NOTEBOOK: "tour.md"}
LINK = re.compile(r"\[([^\[\]]*)\]\((?!https?:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, page in PAGES.items():
        content = relinked((ROOT / name).read_text(), posixpath.dirname(name), files, config)
        files.append(File.generated(config, page, content=content))
    tour = relinked(read_notebook(ROOT / NOTEBOOK), posixpath.dirname(NOTEBOOK), files, config)
    files.append(File.generated(config, MADE[NOTEBOOK], content=tour))
    files.append(File.generated(config, MADE["examples"], content=read_examples(ROOT / "examples")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return markdown if page.file.generated_by else relinked(markdown, "docs", files, config)


def relinked(markdown: str, folder: str, files: Files, config: MkDocsConfig) -> str:
    """A page of a folder of the repository, its links leading to where their targets are in the site."""

    def relink(match: re.Match[str]) -> str:
        text, target, anchor = match[1], posixpath.normpath(posixpath.join(folder, match[2])), match[3] or ""
        if target in PAGES | MADE:
            return f"[{text}]({(PAGES | MADE)[target]}{anchor})"
        if target.startswith("docs/"):
            return f"[{text}]({target.removeprefix('docs/')}{anchor})"
        source = ROOT / target
        if source.is_dir():
            return text
        if target.endswith(".md"):
            raise ValueError(
                f"a page links to {target}, which is no page of the site: add it to PAGES in docs/pages.py"
            )
        copy = f"files/{target}"
        if source.is_file() and not files.get_file_from_path(copy):
            files.append(File.generated(config, copy, abs_src_path=str(source)))
        return f"[{text}]({copy}{anchor})"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)  # code keeps its brackets
    return "".join(part if number % 2 else LINK.sub(relink, part) for number, part in enumerate(parts))


def read_notebook(path: Path) -> str:
    """A notebook's text and code as a page."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text())["cells"]]
    return "\n\n".join(f"```python\n{text}\n```" if kind == "code" else text for kind, text in cells)


def read_examples(folder: Path) -> str:
    """All examples on one page."""
    shown = [f"## {path.name}\n\n```python\n{path.read_text()}```" for path in sorted(folder.glob("*.py"))]
    return "\n\n".join(["# Examples\n\nThe tests run them all.", *shown])
