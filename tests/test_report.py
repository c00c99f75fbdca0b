"""The page of a run: what it says, what it survives, and how it behaves in a real browser."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

import goldiprox as gp
from browser import Browser, find_browser
from goldiprox.data.corruption import Truth
from goldiprox.errors import CorruptFile, MissingFile
from goldiprox.irreducible import describe
from goldiprox.moments import Moments
from goldiprox.pipeline import run
from goldiprox.report import tables
from goldiprox.report.cloud import BINS, make_cloud
from goldiprox.report.collect import read_run
from goldiprox.report.galleries import as_images, encode_png, make_galleries
from goldiprox.report.page import make_page, write_page
from goldiprox.settings import RunConfig
from test_cli import goldiprox  # noqa: F401

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\"'&{{7*7}}"
CANDIDATES, KEEP = 40, 4


def make_images(length: int = 60, side: int = 8, **more) -> gp.TensorData:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (length, 3, side, side), dtype=torch.uint8, generator=generator)
    return gp.TensorData(x, torch.arange(length) % 3, num_classes=3, name="made", **more)


def make_folder(
    folder: Path, data: gp.TensorData, *, steps: int = 30, name: str = "made:up", damage: bool = True
) -> Path:
    """A run's folder as `goldiprox run` leaves it, without training anything."""
    folder.mkdir()
    n, rng = len(data), np.random.default_rng(0)
    train = np.arange(0, n, 2) if n < 1000 else np.arange(n)
    values = np.full(n, np.nan, np.float32)
    values[train] = rng.exponential(0.5, len(train))
    mislabelled = np.zeros(n, bool)
    mislabelled[train[::5]] = damage
    values[mislabelled] += 3
    truth = Truth(data.labels, mislabelled, np.zeros(n, bool), np.full(n, -1))
    given = np.where(mislabelled, (data.labels + 1) % data.num_classes, data.labels)
    data = data.replace(y=torch.from_numpy(given))
    truth.save(folder / "truth.parquet", given=given)
    table = gp.IrreducibleLosses(torch.from_numpy(values), data=describe(data))
    table.save(folder / "irreducible.arrow")
    ids = rng.permuted(np.tile(train, (steps, 1)), axis=1)[:, :KEEP] if n < 1000 else rng.choice(train, (steps, 1000))
    keep = ids.shape[1]
    losses = rng.exponential(1.0, ids.shape).astype(np.float32)
    header = {"data": describe(data), "keep": keep, "config": {"steps": steps}, "columns": ("loss",)}
    with gp.SequenceWriter(folder / "sequence.arrow", flush_rows=2**16, **header) as writer:
        for row, loss in zip(ids, losses, strict=True):
            writer.append(torch.from_numpy(row), {"loss": torch.from_numpy(loss)})
    every = max(1, steps // 10)
    evaluations = [
        {"step": s, "flops": 1000 * s, "seconds": 0.01 * s, "loss": 1.0, "accuracy": s / (s + 10), "examples": s * keep}
        for s in range(every, steps + 1, every)
    ]
    watched = train[:2000]
    by_step = {e["step"]: torch.from_numpy(rng.exponential(1.0, len(watched)).astype(np.float32)) for e in evaluations}
    Moments.of(watched, by_step).save(folder / "losses.parquet")
    classes = np.bincount(given[ids.ravel()], minlength=data.num_classes).tolist()
    methods = ("reducible_loss", "uniform", "loss")
    share = [0.1] * len(evaluations)
    curve = {"evaluations": evaluations, "corrupted": share, "coverage": share, "classes": classes}
    cost = {"examples_scored": 9, "examples_trained": 9, "flops": 9, "seconds": 0.1, "evaluation_seconds": 0.1}
    result = {
        "data": name,
        "seed": 0,
        "device": "cpu",
        "proxy": {"name": "mlp128"},
        "model": {"name": "mlp512"},
        "sequence": {"digest": gp.Sequence.open(folder / "sequence.arrow").digest},
        "results": {m: {"accuracy": evaluations[-1]["accuracy"]} for m in methods},
        "ledger": {"irreducible": cost, "select": cost, "train": cost},
        "versions": {"goldiprox": "0"},
    }
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "curves.json").write_text(json.dumps(dict.fromkeys(methods, curve)))
    (folder / "config.json").write_text(json.dumps({"data": {"data": name}, "proxy": "mlp128"}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"stage": "select", **e}) + "\n" for e in evaluations))
    return folder


def damaged(data: gp.TensorData, folder: Path) -> gp.TensorData:
    """The data as the made-up run has it."""
    return data.replace(y=torch.from_numpy(Truth.open(folder / "truth.parquet")[1]))


def change(path: Path, **values) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Path:
    """A small run with its page."""
    folder = tmp_path_factory.mktemp("runs") / "r"
    run(RunConfig(epochs=2, il_model="proxy", device="cpu", acquisition="reducible_loss"), str(folder))
    write_page([read_run(folder)], folder / "report.html")
    return folder


@pytest.fixture(scope="module")
def browser():
    if find_browser() is None:
        pytest.skip("needs a browser: apt-get install chromium-headless-shell")
    with Browser() as opened:
        yield opened


class Elements(HTMLParser):
    """The elements and attributes of a page, as a parser sees them."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


class TestContent:
    def test_what_run_recorded_is_what_the_page_shows(self, real):
        run, result = read_run(real), json.loads((real / "result.json").read_text())
        assert run.speedup == result["speedup"]
        assert run.no_data == ""
        assert run.losses is not None
        assert len(run.losses) == len(run.ids) == 12 * 32
        assert run.moments is not None
        assert set(run.moments.steps) <= set(range(1, 13))
        assert run.moments.steps[-1] == 12
        assert set(run.moments.ids) <= set(run.train)
        page = text_of((real / "report.html").read_text())
        assert f"{100 * result['results']['reducible_loss']['accuracy']:.1f}" in page
        assert result["sequence"]["digest"] in page
        assert result["fingerprint"] in page

    def test_recorded_classes_and_coverage_are_those_of_the_picks(self, real):
        run = read_run(real)
        sequence = run.methods[0]
        assert sequence.classes.tolist() == np.bincount(run.given[run.ids], minlength=10).tolist()
        seen = [len(set(run.ids[: e["step"] * run.keep])) / len(run.train) for e in sequence.evaluations]
        assert sequence.coverage == pytest.approx(seen)
        assert tables.coverage(run) == pytest.approx(seen[-1])

    def test_precision_and_recall_are_those_of_a_plain_loop(self, real):
        run = read_run(real)
        found = tables.finding(run)
        by_loss = sorted(run.train, key=lambda id: -run.irreducible[id])
        wrong = {id for id in run.train if run.truth.mislabelled[id]}
        assert found["total"] == len(wrong)
        for looked, precision, recall in found["rows"]:
            hits = len(wrong & set(by_loss[:looked]))
            assert (precision, recall) == pytest.approx((hits / looked, hits / len(wrong)))
        assert found["rows"][0][1] > 0.5  # far above the tenth that chance would give

    def test_the_cloud_holds_every_pick_once(self, real):
        run = read_run(real)
        cloud = make_cloud(run)
        parts = cloud["parts"]
        assert sum(part["picks"] for part in parts) == len(run.ids)
        assert [part["first"] - 1 for part in parts] == [0, *(part["end"] for part in parts[:-1])]
        assert all(part["first"] <= part["step"] <= part["end"] for part in parts)
        first = slice(0, parts[0]["end"] * run.keep)
        above = run.losses[first] > run.irreducible[run.ids[first]]
        assert parts[0]["above"] == pytest.approx(above.mean())

    def test_galleries_hold_the_right_examples(self, real):
        run = read_run(real)
        kept, never, hardest = make_galleries(run)
        counts = run.counts
        assert [item.kept for item in kept.items] == sorted(counts[run.train], reverse=True)[:24]
        assert all(counts[item.id] == 0 and item.id in run.train for item in never.items)
        assert hardest.items[0].id == run.train[np.argmax(run.irreducible[run.train])]
        for item in hardest.items:
            assert item.given == str(run.given[item.id])
            assert item.true == (str(run.truth.labels[item.id]) if run.truth.mislabelled[item.id] else None)

    def test_several_runs_stand_side_by_side_and_differences_are_marked(self, tmp_path):
        folders = [make_folder(tmp_path / name, make_images()) for name in ("a", "b")]
        change(folders[1] / "config.json", proxy="small_cnn")
        runs = [read_run(folder) for folder in folders]
        page = make_page(runs)
        assert "2 runs side by side" in page
        assert [name for name, _, differs in tables.setting_rows(runs) if differs] == ["proxy"]

    def test_without_truth_it_says_nothing_of_damage(self, tmp_path):
        folder = make_folder(tmp_path / "r", make_images(), damage=False)
        page = make_page([read_run(folder)])
        assert "Damaged" not in page
        (folder / "truth.parquet").unlink()
        (folder / "losses.parquet").unlink()
        assert "The labels are not at hand" in make_page([read_run(folder)])

    def test_a_run_of_an_earlier_release_still_has_a_page(self, tmp_path):
        folder, data = make_folder(tmp_path / "r", make_images()), make_images()
        (folder / "losses.parquet").unlink()
        curves = json.loads((folder / "curves.json").read_text())
        for curve in curves.values():
            del curve["coverage"], curve["classes"]
        (folder / "curves.json").write_text(json.dumps(curves))
        assert 'class="bars"' in make_page([read_run(folder, data=damaged(data, folder))])


class TestExamples:
    def test_pictures_are_what_the_data_holds(self):
        images = pytest.importorskip("PIL.Image")
        data = make_images()
        pixels = as_images(data, data.x[:5])
        for one in (pixels[0], pixels[0][:, :, :1]):
            opened = np.asarray(images.open(io.BytesIO(encode_png(one))))
            assert (opened.reshape(one.shape) == one).all()
        assert (pixels == data.x[:5].permute(0, 2, 3, 1).numpy()).all()
        large = torch.rand(2, 1, 200, 100)
        assert as_images(gp.TensorData(large, torch.zeros(2)), large).shape == (2, 64, 32, 1)

    def test_text_is_shown_as_its_data_set_reads_it(self, tmp_path):
        tokens = torch.arange(60)[:, None].repeat(1, 5)
        words = lambda x: f"word {int(x[0])} " + 400 * "x"  # noqa: E731
        data = gp.TensorData(tokens, torch.arange(60) % 3, num_classes=3, show=words)
        folder = make_folder(tmp_path / "r", data)
        kept = make_galleries(read_run(folder, data=damaged(data, folder)))[0]
        assert kept.kind == "text"
        assert kept.items[0].text.startswith(f"word {kept.items[0].id} ")
        assert len(kept.items[0].text) == 280
        assert "<blockquote>word" in make_page([read_run(folder, data=damaged(data, folder))])

    def test_a_data_set_that_fails_to_show_itself_is_named(self, tmp_path):
        data = make_images(show=lambda x: 1 / 0)
        folder = make_folder(tmp_path / "r", data)
        with pytest.raises(gp.DataError, match=r"made: its show\(\) failed \(ZeroDivisionError"):
            make_page([read_run(folder, data=damaged(data, folder))])

    def test_anything_else_is_a_row_of_figures(self, tmp_path):
        data = gp.TensorData(torch.arange(1200.0).view(60, 20), torch.arange(60) % 3, num_classes=3)
        folder = make_folder(tmp_path / "r", data)
        kept = make_galleries(read_run(folder, data=damaged(data, folder)))[0]
        assert kept.kind == "row"
        assert kept.items[0].cells[0] == f"{20 * kept.items[0].id:.4g}"
        assert "The first 8 of 20 features" in kept.caption

    def test_where_data_cannot_be_loaded_the_page_says_why(self, tmp_path):
        for name, said in (
            ("no_such_data", "unknown data set"),
            ("cifar10", "there is no folder"),
            ("mnist5k", "examples"),
        ):
            folder = make_folder(tmp_path / f"run of {name}", make_images(), name=name)
            run = read_run(folder, data_dir=str(tmp_path))
            assert run.data is None
            assert said in run.no_data
            assert "cannot be shown" in make_page([run])

    def test_code_named_by_a_folder_is_called_only_when_asked(self, tmp_path, monkeypatch):
        (tmp_path / "strangers_data.py").write_text("def load():\n    raise ValueError('called')\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        folder = make_folder(tmp_path / "r", make_images(), name="strangers_data:load")
        assert "add --data strangers_data:load" in read_run(folder).no_data
        assert "add --data" in read_run(folder, own="other:load").no_data
        assert read_run(folder, own="strangers_data:load").no_data == "called."


class TestHostile:
    @pytest.fixture
    def page(self, tmp_path) -> Path:
        """Every string that a folder or its data can bring along, as bad as can be."""
        data = gp.TensorData(
            torch.arange(60)[:, None],
            torch.arange(60) % 3,
            num_classes=3,
            class_names=(HOSTILE,) * 3,
            show=lambda x: HOSTILE,
        )
        folder = make_folder(tmp_path / HOSTILE.replace("/", "_"), data, name=HOSTILE)
        result = json.loads((folder / "result.json").read_text())
        result["ledger"][HOSTILE] = result["ledger"]["train"]
        change(folder / "result.json", device=HOSTILE, model={"name": HOSTILE}, proxy={"name": HOSTILE})
        change(folder / "result.json", versions={HOSTILE: HOSTILE}, ledger=result["ledger"])
        change(folder / "config.json", **{HOSTILE: HOSTILE})
        curves = json.loads((folder / "curves.json").read_text())
        result["results"][HOSTILE] = result["results"].pop("reducible_loss")
        change(folder / "result.json", results=result["results"])
        renamed = {HOSTILE: curves["reducible_loss"], "uniform": curves["uniform"]}
        (folder / "curves.json").write_text(json.dumps(renamed))
        runs = [read_run(folder, data=damaged(data, folder)), read_run(folder)]
        return write_page(runs, tmp_path / "page.html")

    def test_no_string_becomes_an_element(self, page):
        text = page.read_text()
        found = Elements(text).found
        assert [tag for tag, _ in found].count("script") == 3  # the payload, the library, our charts
        assert "img" not in {tag for tag, _ in found}
        assert not [name for _, attributes in found for name in attributes if name.startswith("on")]
        assert "{{7*7}}" in text
        assert "window.hacked" in text  # it is there, as text
        payload = re.search(r'id="payload">(.*?)</script>', text).group(1)
        assert "<" not in payload
        assert json.loads(payload)["runs"][0]["methods"][0]["label"] == f"the sequence ({HOSTILE})"

    def test_no_string_runs(self, page, browser):
        browser.screen(1200, 900)
        browser.open(page)
        assert browser.evaluate("typeof window.hacked") == "undefined"
        assert browser.complaints == []
        assert browser.evaluate("document.documentElement.dataset.ready !== undefined")

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("result.json", {"ledger": {"irreducible": {"flops": "<b>"}}}),
            ("result.json", {"seed": "<b>"}),
            ("result.json", {"seed": float("nan")}),
            ("result.json", {"versions": None}),
            ("result.json", {"model": []}),
            ("curves.json", {"reducible_loss": {"evaluations": []}}),
            ("curves.json", {"uniform": None}),
            ("config.json", {"data": {"data": "mnist5k", "noise": "much"}}),
            ("config.json", {"data": 3}),
        ],
    )
    def test_files_of_another_shape_are_refused_or_shown(self, name, values, tmp_path):
        folder = make_folder(tmp_path / "r", make_images())
        change(folder / name, **values)
        if name == "config.json":
            assert "cannot be shown" in make_page([read_run(folder)])
        else:
            with pytest.raises(CorruptFile, match="do not fit together"):
                read_run(folder)

    def test_labels_that_no_data_set_has_are_refused(self, tmp_path):
        folder = make_folder(tmp_path / "r", make_images())
        truth, given = Truth.open(folder / "truth.parquet")
        for label in (2**60, -1):
            given[0] = label
            truth.save(folder / "truth.parquet", given=given)
            with pytest.raises(CorruptFile, match="holds labels from"):
                read_run(folder)

    def test_files_that_are_no_files_of_ours_are_refused(self, tmp_path):
        for name in (
            "result.json",
            "curves.json",
            "truth.parquet",
            "losses.parquet",
            "metrics.jsonl",
            "sequence.arrow",
        ):
            folder = make_folder(tmp_path / name, make_images())
            (folder / name).write_bytes(b"\0nonsense")
            with pytest.raises(CorruptFile):
                read_run(folder)


class TestCommand:
    def test_makes_a_page_of_one_or_several_runs(self, goldiprox, real, tmp_path):  # noqa: F811
        code, out, err = goldiprox("report", real)
        assert code == 0, err
        assert str(real / "report.html") in out
        code, out, _ = goldiprox("report", real, real, "--json")
        assert code == 0
        assert json.loads(out) | {"bytes": 0} == {"report": "report.html", "bytes": 0, "runs": 2, "no_data": {}}
        assert (tmp_path / "report.html").stat().st_size == json.loads(out)["bytes"]
        assert goldiprox("report", real, real)[0] == 0  # a page may be made anew

    def test_refuses_what_is_no_run_and_says_why(self, goldiprox, tmp_path):  # noqa: F811
        (tmp_path / "empty").mkdir()
        unfinished = make_folder(tmp_path / "unfinished", make_images())
        (unfinished / ".checkpoint" / "select").mkdir(parents=True)
        (unfinished / ".checkpoint" / "run.json").write_text("{}")
        for folder, said in (
            ("nowhere", "is not a folder"),
            ("empty", "it has no result.json"),
            ("unfinished", "run --resume"),
        ):
            code, out, err = goldiprox("report", folder)
            assert code == 1
            assert said in err
            assert out == ""
        assert goldiprox("report")[0] == 2
        code, _, err = goldiprox("report", *["empty"] * 9)
        assert code == 2
        assert "at most 8 runs" in err

    def test_never_overwrites_what_is_not_such_a_page(self, goldiprox, real, tmp_path):  # noqa: F811
        (tmp_path / "mine.html").write_text("mine")
        code, _, err = goldiprox("report", real, "--out", "mine.html")
        assert code == 1
        assert "--force" in err
        assert (tmp_path / "mine.html").read_text() == "mine"
        assert goldiprox("report", real, "--out", "mine.html", "--force")[0] == 0


DRAWN = """[...document.querySelectorAll('canvas')].map(c => {
  const {data} = c.getContext('2d').getImageData(0, 0, c.width, c.height);
  return new Set(new Uint32Array(data.buffer)).size;
})"""
FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def brightness(colour: str) -> int:
    return sum(map(int, re.findall(r"\d+", colour)[:3]))


class TestInABrowser:
    def test_draws_everything_and_asks_for_nothing(self, browser, real):
        browser.screen(1200, 900)
        browser.open(real / "report.html")
        assert browser.complaints == []
        assert [r for r in browser.requests if not r.startswith("data:")] == [f"file://{real / 'report.html'}"]
        colours = browser.evaluate(DRAWN)
        parts = len(make_cloud(read_run(real))["parts"])
        assert len(colours) == 5 + parts  # accuracy, damage, cloud, finding, coverage; the small pictures
        assert min(colours) > 5  # not blank
        sizes = browser.evaluate(
            """Promise.all([...document.querySelectorAll('.sprite')].map(async (e) => {
              const image = new Image();
              image.src = getComputedStyle(e).backgroundImage.slice(5, -2);
              await image.decode();
              return [image.naturalWidth, image.naturalHeight];
            }))"""
        )
        assert len(sizes) == 3 * 24
        assert all(size == [6 * 28, 4 * 28] for size in sizes)

    def test_controls_work_from_the_keyboard(self, browser, real):
        browser.screen(1200, 900)
        browser.open(real / "report.html")
        label = "charts => document.querySelector('[data-chart=accuracy] + .legend').textContent"
        browser.evaluate("document.querySelector('[data-chart=accuracy]').focus()")
        for _ in range(3):
            browser.key("ArrowRight")
        assert re.search(r"at 3", browser.evaluate(f"({label})()"))
        assert "%" in browser.evaluate(f"({label})()")
        browser.evaluate("document.querySelector('input[value=flops]').click()")
        assert browser.evaluate("!document.querySelector('.only-cost').hidden")
        browser.evaluate("document.querySelector('input[type=range]').focus()")
        before = browser.evaluate("document.querySelector('output').textContent")
        browser.key("ArrowLeft")
        assert browser.evaluate("document.querySelector('output').textContent") != before
        assert browser.complaints == []

    def test_everything_that_takes_the_focus_has_a_name(self, browser, real):
        browser.screen(1200, 900)
        browser.open(real / "report.html")
        nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
        focusable = [n for n in nodes if any(p["name"] == "focusable" for p in n.get("properties", ()))]
        nameless = [n["role"]["value"] for n in focusable if not n.get("name", {}).get("value")]
        assert len(focusable) > 30
        assert nameless == []

    @pytest.mark.parametrize("width", [320, 390])
    def test_fits_on_a_phone(self, browser, real, width, tmp_path):
        both = write_page([read_run(real)] * 2, tmp_path / "both.html")
        browser.screen(width, 800)
        for page in (real / "report.html", both):
            browser.open(page)
            assert browser.evaluate(OVERFLOW) <= 0
            browser.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
            assert browser.evaluate(OVERFLOW) <= 0

    def test_follows_the_reader_into_the_dark(self, browser, real):
        colours = """(() => {
          const read = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
          const canvas = document.querySelector('[data-chart=accuracy] canvas');
          const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
          const drawn = new Set(new Uint32Array(data.buffer)), hex = parseInt(read('--sequence').slice(1), 16);
          const wanted = (255 << 24 | (hex & 255) << 16 | (hex >> 8 & 255) << 8 | hex >> 16) >>> 0;
          return [getComputedStyle(document.body).backgroundColor, read('--sequence'), drawn.has(wanted)];
        })()"""
        browser.screen(1200, 900)
        browser.open(real / "report.html")
        light = browser.evaluate(colours)
        browser.screen(1200, 900, dark=True)
        browser.evaluate(FRAMES)
        dark = browser.evaluate(colours)
        assert brightness(light[0]) > 700 > 150 > brightness(dark[0])
        assert light[1] != dark[1]
        assert light[2]  # the curve is drawn in the colour of the theme,
        assert dark[2]  # and drawn anew when that changes
        assert browser.complaints == []

    def test_prints_on_white_with_all_charts(self, browser, real):
        browser.screen(1200, 900, dark=True)
        browser.open(real / "report.html")
        browser.evaluate(
            "addEventListener('beforeprint', () => { window.paper = getComputedStyle(document.body).backgroundColor })"
        )
        assert browser.pdf().startswith(b"%PDF")
        assert brightness(browser.evaluate("window.paper")) > 700
        assert not browser.evaluate("document.documentElement.classList.contains('printing')")
        assert browser.complaints == []

    def test_a_million_picks_stay_light(self, browser, tmp_path, record_property):
        data = make_images(50_000, side=8)
        folder = make_folder(tmp_path / "large", data, steps=1000)
        run = read_run(folder, data=damaged(data, folder))
        assert len(run.ids) == 1_000_000
        page = write_page([run], tmp_path / "large.html")
        assert page.stat().st_size < 20e6
        browser.screen(1200, 900)
        seconds = browser.open(page)
        record_property("megabytes", page.stat().st_size / 1e6)  # to be read with --junitxml, -o junit_family=xunit1
        record_property("seconds until it is drawn", seconds)
        assert browser.complaints == []
        assert seconds < 10  # the aim is 3, and 0.4 was measured; other tests run on the same cores


def test_cells_are_counted_where_they_belong():
    from goldiprox.report.cloud import SCALE, _counts

    x, y = np.array([0, SCALE, SCALE // 2], np.uint16), np.array([0, SCALE, 0], np.uint16)
    counts = _counts(x, y).reshape(BINS, BINS)
    assert (counts[0, 0], counts[-1, -1], counts.sum()) == (1, 1, 3)
    assert counts[0, BINS // 2 - 1 : BINS // 2 + 1].sum() == 1


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(MissingFile, match="nowhere"):
        read_run(tmp_path / "nowhere")
