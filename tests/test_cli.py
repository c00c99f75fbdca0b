"""The command line as users meet it: what it prints, what it leaves, what it refuses."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader

import goldiprox as gp
from goldiprox.cli import main
from goldiprox.cli.run import _show as show_run
from goldiprox.prepare import DataConfig, prepare
from goldiprox.settings import RunConfig
from test_artifacts import rewrite_header

QUICK = ["--epochs", "2", "--device", "cpu"]
SMALL = [*QUICK, "--il-model", "proxy"]
"""Without a second, larger holdout model, which noisy labels ask for."""
NOISY = ["--noise", "0.1"]


@pytest.fixture
def goldiprox(capsys, monkeypatch, tmp_path):
    """Runs a command in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GOLDIPROX_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")

    def call(*args):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["goldiprox", *map(str, args)])
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as e:
            main()
            sys.exit(0)
        code = 0 if e.value.code is None else e.value.code
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One small run that many tests look at: (folder, what --json printed)."""
    folder = tmp_path_factory.mktemp("runs") / "r"
    command = [sys.executable, "-m", "goldiprox", "run", *QUICK, "--json", "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return folder, json.loads(done.stdout)


class TestRun:
    def test_json_holds_what_is_promised(self, finished):
        folder, result = finished
        assert result["data"] == "mnist5k"
        assert result["seed"] == 0
        by = result["sequence"]["by"]
        assert by in result["sequence"]["rehearsed"]
        assert set(result["results"]) == {"uniform", "loss", by}
        assert all(0 < r["accuracy"] < 1 for r in result["results"].values())
        assert set(result["corrupted"]) == {"data", "uniform", "loss", by}
        assert 0.08 < result["corrupted"]["data"] < 0.1
        assert {"steps", "flops", "seconds"} <= set(result["speedup"])
        assert result["report"] == str(folder / "report.html")
        sequence = gp.Sequence.open(result["sequence"]["path"])
        assert sequence.digest == result["sequence"]["digest"]
        assert len(sequence) == result["sequence"]["steps"] == 12

    def test_leaves_every_file_of_the_run(self, finished):
        folder, result = finished
        names, by = {p.name for p in folder.iterdir()}, result["sequence"]["by"]
        of_the_proxy = {"losses.parquet", "proxy.safetensors"} if by == "reducible_loss" else set()
        assert names == of_the_proxy | {
            "config.json", "curves.json", "result.json", "metrics.jsonl", "irreducible.arrow", "sequence.arrow",
            "truth.parquet", "report.html",
            "il_model.safetensors", "model-uniform.safetensors", "model-loss.safetensors",
            f"model-{by}.safetensors", "accuracy.png", "corrupted.png",
            "sequence-reducible_loss.arrow", "sequence-predictability.arrow",
        }  # fmt: skip
        assert all((folder / name).read_bytes()[:4] == b"\x89PNG" for name in ("accuracy.png", "corrupted.png"))
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert {line["stage"] for line in lines} == {"select", by, "uniform", "loss"}
        truth = pq.read_table(folder / "truth.parquet").to_pydict()
        data = prepare(DataConfig(noise=0.1)).data
        assert truth["mislabelled"] == (data.labels != np.array(truth["label"])).tolist()
        assert np.mean(
            np.array(truth["mislabelled"])[gp.Sequence.open(folder / "sequence.arrow").ids]
        ) == pytest.approx(result["corrupted"][by])
        model = gp.build("mlp512", (1, 28, 28), 10)
        model.load_state_dict(load_file(folder / "model-uniform.safetensors"))
        accuracy = gp.evaluate_on(gp.load("mnist5k").test)(model)["accuracy"]
        assert accuracy == pytest.approx(result["results"]["uniform"]["accuracy"])

    @pytest.mark.parametrize(
        ("il_model", "acquisition", "advised"),
        [("mlp128", "reducible_loss", True), ("mlp512", "reducible_loss", False), ("mlp128", "loss", False)],
    )
    def test_a_loss_to_uniform_comes_with_what_to_try(self, finished, capsys, il_model, acquisition, advised):
        lost = finished[1] | {"speedup": {"steps": None}, "il_model": {"name": il_model, "instead": None}}
        show_run(lost, RunConfig(acquisition=acquisition))
        said = " ".join(capsys.readouterr().out.split())
        assert "did not reach uniform's final accuracy" in said
        assert ("Try --il-model mlp512." in said) == advised

    def test_the_ledger_adds_up(self, finished):
        _, result = finished
        ledger = result["ledger"]
        scored = {"select": 12 * 320, "select by predictability": 0, "rehearsal": 2 * 2_000}
        assert {stage: ledger[stage]["examples_scored"] for stage in scored} == scored
        trained = {"select": 12 * 32, "select by predictability": 0, "rehearsal": 2 * 12 * 32}
        assert {stage: ledger[stage]["examples_trained"] for stage in trained} == trained
        assert ledger["train uniform"]["examples_scored"] == 0
        assert ledger["train loss"]["examples_scored"] == 12 * 320
        per_example = ledger["train"]["flops"] / ledger["train"]["examples_trained"]
        assert per_example == pytest.approx(6 * 931_328, rel=0.2)  # three passes of two operations per weight

    def test_the_same_seed_gives_the_same_digest_with_0_and_2_workers(self, finished, goldiprox):
        """With the paper's one holdout model, since every epoch starts its own loading processes."""
        runs = [finished[1]]
        for flags in (["--preset", "paper", *f] for f in ([], ["--workers", "0"], ["--workers", "2"])):
            code, out, _ = goldiprox("run", *QUICK, "--json", *flags, "--out", f"again{len(runs)}")
            assert code == 0
            runs.append(json.loads(out))
        default, first, *others = runs
        for again in others:
            assert again["sequence"]["digest"] == first["sequence"]["digest"] != default["sequence"]["digest"]
            for name, figures in first["results"].items():
                assert again["results"][name]["accuracy"] == figures["accuracy"]

    def test_the_next_command_keeps_to_the_paper(self, goldiprox):
        for flags, kept in (([], False), (["--preset", "paper"], True)):
            _, out, _ = goldiprox("irreducible", "--data", "mnist5k", "--out", "i.arrow", "--force", *flags)
            assert ("--preset paper" in out.rpartition("Next: goldiprox select")[2]) == kept

    def test_trusted_labels_in_an_order_of_chance(self, finished, goldiprox):
        folder, result = finished
        flags = ["--trusted", "3", "--window", "4", "--rule", "top_k"]  # which comes back to examples within two passes
        code, out, err = goldiprox("run", *QUICK, "--json", *flags, "--out", "trusted")
        assert code == 0, err
        again = json.loads(out)
        assert again["sequence"]["steps"] == result["sequence"]["steps"]
        assert again["results"]["uniform"]["accuracy"] == result["results"]["uniform"]["accuracy"]
        sequence = gp.Sequence.open(again["sequence"]["path"])
        table = gp.IrreducibleLosses.open(folder / "irreducible.arrow")
        data = prepare(DataConfig(noise=0.1)).data
        trusted = gp.trusted_ids(table, data, odds=3)
        assert set(sequence.ids) <= set(trusted.tolist())
        before = gp.Sequence.open(result["sequence"]["path"]).header.config
        assert len(trusted) == sequence.header.config["num_train"] < before["num_train"] < 2_000
        assert (sequence.header.config["trusted"], before["trusted"]) == (3, 10)
        flags = ["--sequence", again["sequence"]["path"], "--noise", "0.1", "--device", "cpu", "--json"]
        accuracies = set()
        for window in ("4", "1"):
            code, out, err = goldiprox("train", *flags, "--window", window)
            assert code == 0, err
            accuracies.add(json.loads(out)["accuracy"])
        assert len(accuracies) == 2
        assert again["results"]["reducible_loss"]["accuracy"] in accuracies
        # Curves are those of what the model saw by then, not the proxy.
        curve = json.loads(Path("trusted/curves.json").read_text())["reducible_loss"]
        in_order, shuffled = (
            [len(set(ids[: 32 * e["step"]])) / 2_000 for e in curve["evaluations"]]
            for ids in (sequence.ids, sequence.shuffled(4).ids)
        )
        assert curve["coverage"] == shuffled != in_order

    def test_too_few_trusted_labels(self, finished, goldiprox):
        flags = ["--irreducible", finished[0] / "irreducible.arrow", *NOISY, "--trusted", "3", "--candidates", "2000"]
        code, _, err = goldiprox("select", *flags)
        assert (code, "--trusted 3 leaves 1," in " ".join(err.split())) == (2, True), err

    def test_for_people_it_ends_with_table_page_and_the_next_command(self, goldiprox, monkeypatch):
        code, out, err = goldiprox("run", *QUICK)
        assert code == 0
        assert "Holdout model: mlp512, since mlp128 falls short: " in out
        assert "final accuracy" in out
        assert "runs/mnist5k-001/report.html" in out
        assert "12 steps are few: a pass over the training side is 6 of them" in out
        assert (
            "Next: goldiprox train --sequence runs/mnist5k-001/sequence.arrow --model mlp512 --seed 1 --noise 0.1"
            in out
        )
        assert "select" in err
        assert "steps/s" in err
        with monkeypatch.context() as patch:
            patch.setattr("shutil.which", lambda name: None)
            _, out, _ = goldiprox("data", "list")
        assert "Next: goldiprox data" in out  # the tests' argv[0]; .venv/bin/goldiprox for `make run`
        goldiprox("run", *SMALL)
        assert gp.Sequence.open("runs/mnist5k-002/sequence.arrow").complete


class TestStages:
    def test_one_by_one_they_agree_with_run(self, finished, goldiprox):
        _, result = finished
        large = ["--model", "mlp512"]
        code, out, err = goldiprox("irreducible", *NOISY, *large, "--device", "cpu", "--json", "--out", "i.arrow")
        assert code == 0, err
        made = json.loads(out)["irreducible"]
        by = result["sequence"]["by"]
        own = ["--irreducible", "i.arrow", "--acquisition", by]
        code, out, err = goldiprox("select", *NOISY, *QUICK, *own, "--json", "--out", "s.arrow")
        assert code == 0, err
        selected = json.loads(out)["sequence"]
        assert selected["path"] == "s.arrow"
        assert selected["steps"] == 12
        assert selected["digest"] == result["sequence"]["digest"]
        assert gp.Sequence.open("s.arrow").header.parents["irreducible"] == made["digest"]
        code, out, err = goldiprox("train", *NOISY, "--sequence", "s.arrow", "--device", "cpu", "--json", "--out", "t")
        assert code == 0, err
        assert json.loads(out)["accuracy"] == result["results"][by]["accuracy"]
        assert {"model.safetensors", "metrics.jsonl", "result.json"} <= {p.name for p in gp_path("t").iterdir()}

    def test_each_prints_the_next_command_and_it_works(self, goldiprox):
        command = ["irreducible", "--noise", "0.2", "--noise-kind", "class", "--data-seed", "3"]
        for stage in ("select", "train", "inspect"):
            code, out, err = goldiprox(*command)
            assert code == 0, err
            command = out.rpartition("Next: goldiprox ")[2].split()
            assert command[0] == stage
            command += ["--epochs", "1"] if stage == "select" else []
        assert goldiprox("inspect", command[1])[0] == 0

    def test_a_stage_with_other_data_flags_is_refused_and_says_which(self, finished, goldiprox):
        folder, _ = finished
        for flags, said in (
            (["--noise", "0.2"], "--noise 0.1 there, 0.2 here"),
            (["--noise", "0.1", "--data-seed", "1"], "--data-seed 0 there, 1 here"),
            (["--noise", "0.1", "--holdout-noise", "0.1"], "--holdout-noise 0.0 there, 0.1 here"),
            ([], "--noise 0.1 there, 0.0 here"),
        ):
            code, _, err = goldiprox("select", *flags, "--irreducible", folder / "irreducible.arrow")
            assert (code, said in err) == (1, True), err
            code, _, err = goldiprox("train", *flags, "--sequence", folder / "sequence.arrow", "--out", "t")
            assert (code, said in err) == (1, True), err
        assert list(gp_path(".").iterdir()) == []

    def test_another_split_of_the_same_labels_is_refused(self, goldiprox):
        goldiprox("irreducible", "--out", "i.arrow")
        code, _, err = goldiprox("select", "--irreducible", "i.arrow", "--data-seed", "1")
        assert code == 1
        assert "another division" in err
        assert "--data-seed 0 there, 1 here" in err

    def test_cross_fitting_needs_no_holdout(self, goldiprox):
        code, out, _ = goldiprox("irreducible", "--holdout", "0", "--folds", "2", "--json")
        assert code == 0
        assert json.loads(out)["irreducible"]["examples"] == 4_000
        code, out, _ = goldiprox("select", "--holdout", "0", "--irreducible", "irreducible.arrow", *QUICK)
        assert code == 0

    def test_how_long_the_holdout_model_learns(self, goldiprox):
        def epochs(*flags: str) -> int:
            return json.loads(goldiprox("irreducible", "--json", "--force", *flags)[1])["il_model"]["epochs"]

        assert epochs() > 10  # as many as make 300 steps
        assert epochs("--holdout-epochs", "2") == 2

    @pytest.mark.parametrize("acquisition", ["loss", "uniform", "entropy", "gradient_norm", "ordered_loss"])
    def test_acquisitions_that_need_no_irreducible_losses(self, goldiprox, acquisition):
        assert goldiprox("select", *QUICK, "--acquisition", acquisition)[0] == 0
        assert gp.Sequence.open("sequence.arrow").header.config["acquisition"] == acquisition

    def test_bald_with_dropout_and_columns(self, goldiprox):
        code, _, err = goldiprox("select", *QUICK, "--acquisition", "bald")
        assert code == 2
        assert "--dropout 0.5" in err
        code, _, err = goldiprox("select", *QUICK, "--acquisition", "bald", "--dropout", "0.5", "--columns", "score")
        assert code == 0, err
        assert len(gp.Sequence.open("sequence.arrow").column("score")) == 12 * 32

    @pytest.mark.parametrize("rule", ["gumbel_top_k", "mix"])
    def test_rules(self, goldiprox, rule):
        assert goldiprox("select", *QUICK, "--acquisition", "loss", "--rule", rule, "--temperature", "0.5")[0] == 0


def gp_path(name):
    from pathlib import Path

    return Path(name)


REFUSED = {
    "keep over candidates": (["run", "--keep", "400"], 2, "cannot keep 400 of 320 candidates"),
    "keep of nothing": (["run", "--keep", "0"], 2, "--keep 0"),
    "candidates over the training side": (["run", "--candidates", "2001"], 2, "training side has only 2,000"),
    "select: candidates over the training side": (
        ["select", "--acquisition", "loss", "--candidates", "2001"],
        2,
        "training side has only 2,000",
    ),
    "no epochs": (["run", "--epochs", "0"], 2, "--epochs 0"),
    "a window of less than a step": (["run", "--window", "-1"], 2, "--window -1"),
    "trust without irreducible losses": (["select", "--acquisition", "loss", "--trusted", "3"], 2, "--trusted needs"),
    "an empty holdout": (["run", "--holdout", "0"], 2, "holdout is empty"),
    "irreducible with an empty holdout": (["irreducible", "--holdout", "0"], 2, "holdout is empty"),
    "a holdout of everything": (["run", "--holdout", "1"], 2, "not in [0, 1)"),
    "unknown data": (["run", "--data", "mnist5"], 2, "Did you mean 'mnist5k'?"),
    "unknown proxy": (["run", "--proxy", "mlp_128"], 2, "Did you mean 'mlp128'?"),
    "unknown model": (["run", "--model", "resnet"], 2, "Did you mean 'resnet18'?"),
    "unknown holdout model": (["run", "--il-model", "smal_cnn"], 2, "Did you mean 'small_cnn'?"),
    "unknown acquisition": (["run", "--acquisition", "reducible"], 2, "Did you mean 'reducible_loss'?"),
    "unknown rule": (["run", "--rule", "topk"], 2, "Did you mean 'top_k'?"),
    "unknown noise": (["run", "--noise-kind", "unifrom"], 2, "Did you mean 'uniform'?"),
    "unknown checkpoint": (["run", "--checkpoint", "best"], 2, "unknown checkpoint rule 'best'"),
    "no passes over the holdout": (["run", "--holdout-epochs", "0"], 2, "max_epochs=0"),
    "unknown schedule": (["run", "--schedule", "cosin"], 2, "Did you mean 'cosine'?"),
    "unknown device": (["run", "--device", "cud"], 2, "Did you mean 'cuda'?"),
    "a share of labels over 1": (["run", "--noise", "1.5"], 2, "not between 0 and 1"),
    "a negative temperature": (["run", "--rule", "gumbel_top_k", "--temperature", "-1"], 2, "temperature of -1.0"),
    "missing data": (["run", "--data", "cifar10"], 1, "--data-dir or GOLDIPROX_DATA"),
    "a model that does not fit": (["run", "--model", "torch.nn:Linear"], 1, "cannot be made for inputs of shape"),
    "bald without dropout": (["run", "--acquisition", "bald"], 2, "--dropout 0.5"),
    "a negative weight decay": (["run", "--weight-decay", "-1"], 2, "weight decay of -1.0"),
    "dropout of everything": (["run", "--dropout", "1.5"], 2, "--dropout 1.5"),
    "a negative number of workers": (["run", "--workers", "-1"], 2, "--workers -1"),
    "no threads": (["run", "--threads", "0"], 2, "--threads 0"),
    "a module without a name": (["run", "--data", ":load"], 2, "unknown data set ':load'"),
    "something that is no function": (["run", "--model", "math:pi"], 2, "unknown model in math 'pi'"),
    "a model that is no module": (["run", "--model", "operator:is_"], 1, "gave a bool, not an nn.Module"),
    "a name too long": (["irreducible", "--out", "x" * 300], 1, "too long"),
    "no irreducible losses": (["select"], 1, "goldiprox irreducible"),
    "no irreducible losses for another that needs them": (["select", "--acquisition", "probability_gain"], 1, "--irr"),
    "Ray's flags without Ray": (["irreducible", "--actors", "2"], 2, "add --engine ray"),
    "an unknown tracker": (["run", "--track", "tensorbord"], 2, "Did you mean 'tensorboard'?"),
    "a page of nothing": (["report", "nowhere"], 1, "give the folder of a run"),
    "a missing irreducible file": (["select", "--irreducible", "no.arrow"], 1, "no.arrow does not exist"),
    "a missing sequence": (["train", "--sequence", "no.arrow"], 1, "no.arrow does not exist"),
    "an unwritable folder": (["run", "--out", "/proc/nowhere"], 1, "cannot write in /proc/nowhere"),
    "an unwritable file": (["irreducible", "--out", "/proc/nowhere/i.arrow"], 1, "cannot write in /proc/nowhere"),
    "a flag that does not exist": (["run", "--epoch", "3"], 2, "--epoch"),
    "columns that do not exist": (["select", "--acquisition", "loss", "--columns", "magic"], 2, "magic"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_before_anything_is_written(case, goldiprox, tmp_path):
    args, expected, said = REFUSED[case]
    code, out, err = goldiprox(*args)
    assert code == expected, err
    assert said in err.replace("\n", " ")
    assert "Traceback" not in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_existing_outputs_are_refused_and_left_alone(goldiprox, tmp_path):
    for name in ("irreducible.arrow", "sequence.arrow"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.txt").write_text("mine")
    for args in (
        ["irreducible"],
        ["select", "--acquisition", "loss"],
        ["run", "--out", "folder"],
        ["run", "--out", "irreducible.arrow"],
    ):
        code, _, err = goldiprox(*args)
        assert code == 1
        assert "--force" in err or "is a file" in err
    assert {p.name for p in tmp_path.iterdir()} == {"irreducible.arrow", "sequence.arrow", "folder"}
    assert (tmp_path / "irreducible.arrow").read_text() == "mine"
    code, _, err = goldiprox("select", *QUICK, "--acquisition", "loss", "--force")
    assert code == 0, err
    assert gp.Sequence.open("sequence.arrow").complete


def test_force_replaces_a_run_only_when_the_new_one_is_complete(goldiprox, tmp_path):
    assert goldiprox("run", *SMALL, "--out", "r", "--acquisition", "entropy")[0] == 0
    mine = ("mine.txt", "package.json", "other.arrow", "weights.safetensors")
    for name in mine:
        (tmp_path / "r" / name).write_text("mine")
    (tmp_path / "r" / "tracking" / "tensorboard").mkdir(parents=True)  # curves of the run that is replaced
    digest = gp.Sequence.open("r/sequence.arrow").digest
    code, _, err = goldiprox("run", *SMALL, "--out", "r", "--force", "--lr", "1e30")
    assert code == 1, err
    assert "not finite" in err
    assert gp.Sequence.open("r/sequence.arrow").digest == digest  # as if it had not been tried
    assert (tmp_path / "r" / "tracking" / "tensorboard").is_dir()
    assert not (tmp_path / "r" / ".replaced").exists()
    assert goldiprox("run", *SMALL, "--out", "r", "--force")[0] == 0
    names = {p.name for p in (tmp_path / "r").iterdir()}
    assert names.issuperset(mine)
    assert not names & {".replaced", "model-entropy.safetensors", "tracking"}


def test_a_run_that_fails_at_once_leaves_nothing_in_the_way(goldiprox, tmp_path):
    for out in (["--out", "e"], []):
        code, _, err = goldiprox("run", *SMALL, "--no-cleaned", "--mixup", "off", "--holdout", "0.0005", *out)
        assert code in (1, 2)
        assert "too small" in err
    assert not list(tmp_path.glob("e/*"))
    assert not list(tmp_path.glob("runs/*"))
    assert goldiprox("run", *SMALL, "--out", "e", "--acquisition", "uniform")[0] == 0


def test_force_replaces_runs_and_nothing_that_looks_like_one(goldiprox, tmp_path):
    theirs = tmp_path / "pretrained"
    theirs.mkdir()
    for name in ("config.json", "model.safetensors"):
        (theirs / name).write_text("theirs")
    code, _, err = goldiprox("run", *SMALL, "--out", "pretrained", "--force")
    assert code == 1
    assert "holds config.json, model.safetensors, but no run that could be replaced: there is no metrics.jsonl" in err
    assert {p.read_text() for p in theirs.iterdir()} == {"theirs"}


def test_force_never_replaces_what_a_run_is_made_from(goldiprox, tmp_path):
    assert goldiprox("run", *SMALL, "--acquisition", "uniform", "--out", "r")[0] == 0
    before = {p.name: p.read_bytes() for p in (tmp_path / "r").iterdir() if p.is_file()}
    flags = ("--sequence", "r/sequence.arrow", *NOISY, "--device", "cpu", "--out", "r", "--force")
    code, _, err = goldiprox("train", "--model", "mlp128", *flags)
    assert code == 1
    assert "would be replaced with the run there; choose another --out" in err
    assert {p.name: p.read_bytes() for p in (tmp_path / "r").iterdir() if p.is_file()} == before


@pytest.mark.parametrize("out", [".", "/", ""])
@pytest.mark.parametrize("command", [["irreducible"], ["select", "--acquisition", "loss"]])
def test_a_folder_is_no_name_of_a_file(goldiprox, command, out):
    code, _, err = goldiprox(*command, *QUICK[2:], "--out", out)
    assert code == 1
    assert "is a folder; give the name of a file" in err


def test_an_acquisition_with_the_name_of_a_baseline_stands_beside_it(goldiprox, tmp_path, monkeypatch):
    (tmp_path / "own_scores.py").write_text("def uniform(c):\n    return -c.loss\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, err = goldiprox(
        "run", *SMALL, "--acquisition", "own_scores:uniform", "--out", "a-mine:uniform", "--json"
    )
    assert code == 0, err
    result = json.loads(out)
    assert list(result["results"]) == ["own_scores.uniform", "uniform", "loss"]
    assert result["corrupted"]["own_scores.uniform"] != result["corrupted"]["uniform"]
    assert (tmp_path / "a-mine:uniform" / "model-uniform.safetensors").exists()
    sys.modules.pop("own_scores", None)
    assert result["report"] is not None, err  # a colon in the folder's name is no address


def test_json_is_strict(goldiprox):
    assert goldiprox("select", *QUICK, "--acquisition", "loss", "--temperature", "inf")[0] == 0
    code, out, _ = goldiprox("inspect", "sequence.arrow", "--json")
    assert code == 0

    def refuse(name):
        raise ValueError(name)

    assert json.loads(out, parse_constant=refuse)


def test_data_of_ones_own_that_does_not_fit_together(goldiprox, tmp_path):
    (tmp_path / "own.py").write_text(
        "import torch\n"
        "def pairs(labels): return [(torch.tensor([float(i), 1.0]), y) for i, y in enumerate(labels)]\n"
        "def outside(): return pairs([0, 1] * 50), pairs([0, 1, 2])\n"
        "def negative(): return pairs([0, -1] * 50), pairs([0])\n"
        "def regression(): return pairs([0.5, 1.5] * 50), pairs([0.5])\n"
        "def nan(): return [(torch.tensor([float('nan'), 1.0]), i % 2) for i in range(100)], pairs([0])\n"
        "def two(shape, classes): return torch.nn.Linear(2, 1)\n"
    )
    small = ["--candidates", "20", "--keep", "2", "--epochs", "1", "--out", "o"]
    for flags, code, said in (
        (["--data", "own:outside"], 1, "outside the 2 classes 0..1: ids 2 have labels 2"),
        (["--data", "own:negative"], 1, "have labels -1"),
        (["--data", "own:regression", "--noise", "0"], 2, "no integer labels"),
        (["--data", "own:nan"], 1, "not finite"),
        (["--proxy", "own:two", "--data", "mnist5k"], 1, "the proxy does not accept the inputs"),
    ):
        got, out, err = goldiprox("run", *small, *flags)
        assert (got, out) == (code, ""), err
        assert said in err
        assert not (tmp_path / "o").exists()


def test_a_sequence_of_another_format_version(finished, goldiprox, tmp_path):
    folder, _ = finished
    (tmp_path / "s.arrow").write_bytes((folder / "sequence.arrow").read_bytes())
    rewrite_header(tmp_path / "s.arrow", format=7)
    code, _, err = goldiprox("train", *NOISY, "--sequence", "s.arrow", "--out", "t")
    assert code == 1
    assert "format version 7" in err
    assert [p.name for p in tmp_path.iterdir()] == ["s.arrow"]


def test_an_interrupted_run_says_what_is_left(tmp_path):
    command = [sys.executable, "-m", "goldiprox", "select", "--acquisition", "loss", "--epochs", "100000"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    partial = tmp_path / "sequence.arrow.partial"
    deadline = time.monotonic() + 120
    while not partial.exists() or partial.stat().st_size < 20_000:  # a record batch of 16 KiB is in it
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: stopped after step" in err
    assert "select --acquisition loss --epochs 100000 --resume" in err
    assert "Traceback" not in err
    rescued = gp.Sequence.open(partial, partial=True)
    assert len(rescued) >= 256
    assert not (tmp_path / "sequence.arrow").exists()


def test_names_with_brackets_survive(goldiprox, tmp_path):
    code, out, err = goldiprox("select", *QUICK, "--acquisition", "loss", "--out", "a[/b].arrow")
    assert code == 0, err
    assert "a[/b].arrow" in out
    code, out, _ = goldiprox("inspect", "a[/b].arrow")
    assert code == 0


def test_learning_rate_and_weight_decay_reach_the_holdout_model(goldiprox):
    digests = set()
    for flags in ([], ["--lr", "0.01"], ["--weight-decay", "0.5"]):
        code, out, err = goldiprox("irreducible", *flags, "--json", "--force")
        assert code == 0, err
        digests.add(json.loads(out)["irreducible"]["digest"])
    assert len(digests) == 3


def test_a_damaged_sequence_is_refused_before_training(finished, goldiprox, tmp_path):
    folder, _ = finished
    content = (folder / "sequence.arrow").read_bytes()
    (tmp_path / "cut.arrow").write_bytes(content[:-200])
    middle = len(content) - 300
    (tmp_path / "bit.arrow").write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    for name in ("cut.arrow", "bit.arrow"):
        code, _, err = goldiprox("train", *NOISY, "--sequence", name, "--out", "t")
        assert code == 1
        assert "truncated or damaged" in err
        code, _, err = goldiprox("verify", name)
        assert code == 1
        assert "bad" in err
    assert not (tmp_path / "t").exists()


def test_training_while_another_process_selects(goldiprox, tmp_path):
    select = [sys.executable, "-m", "goldiprox", "select", "--acquisition", "loss", "--epochs", "20", "--device", "cpu"]
    selecting = subprocess.Popen(select, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        code, out, err = goldiprox(
            "train", "--follow", "--timeout", "300", "--device", "cpu", "--json", "--out", "followed"
        )
    finally:
        assert selecting.wait() == 0
    assert code == 0, err
    followed = json.loads(out)
    code, out, _ = goldiprox("train", "--device", "cpu", "--json", "--out", "replayed")
    assert followed["sequence"] == json.loads(out)["sequence"]
    weights = [load_file(gp_path(name) / "model.safetensors") for name in ("followed", "replayed")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
    lines = [(gp_path(name) / "metrics.jsonl").read_text().count("\n") for name in ("followed", "replayed")]
    assert lines[0] == lines[1] > 1


def test_a_folder_that_another_process_writes_is_not_replaced(goldiprox, tmp_path):
    folder = tmp_path / "r"
    data = {"fingerprint": "x", "length": 10}
    with gp.SequenceWriter(folder / "sequence.arrow", data=data, keep=1) as writer:
        code, _, err = goldiprox("run", *QUICK, "--out", folder, "--force")
        assert (code, "another process is writing" in err) == (1, True), err
        writer.append(torch.tensor([3]))
    assert list(gp.Sequence.open(folder / "sequence.arrow")) == [[3]]


def test_following_nothing_and_a_dead_process(finished, goldiprox, tmp_path):
    code, _, err = goldiprox("train", "--follow", "--timeout", "0.1")
    assert (code, "has appeared within 0.1 s" in err) == (1, True)
    content = (finished[0] / "sequence.arrow").read_bytes()
    (tmp_path / "sequence.arrow.partial").write_bytes(content[:-8])
    code, _, err = goldiprox("train", *NOISY, "--follow", "--timeout", "0.1", "--device", "cpu")
    assert (code, "holds 12 steps and no end mark" in err) == (1, True), err


class TestInspectAndVerify:
    def test_inspect(self, finished, goldiprox):
        folder, result = finished
        code, out, _ = goldiprox("inspect", folder / "sequence.arrow", "--json")
        shown = json.loads(out)
        assert code == 0
        assert shown["digest"] == result["sequence"]["digest"]
        assert shown["steps"] == 12
        assert shown["header"]["config"]["data"]["noise"] == 0.1
        code, out, _ = goldiprox("inspect", folder / "irreducible.arrow")
        assert code == 0
        assert "2,000" in out
        assert "mlp128" in out

    def test_verify(self, finished, goldiprox):
        folder, _ = finished
        files = [folder / "sequence.arrow", folder / "irreducible.arrow"]
        code, out, _ = goldiprox("verify", *files, "--data", "mnist5k", *NOISY)
        assert code == 0
        assert out.count("ok") == 2
        code, _, err = goldiprox("verify", *files, *NOISY)
        assert (code, "add --data NAME" in err) == (2, True)
        code, out, _ = goldiprox("verify", *files, "--json")
        assert [f["ok"] for f in json.loads(out)["files"]] == [True, True]
        assert goldiprox("verify", *files, "--data", "mnist5k", "--noise", "0.3")[0] == 1

    def test_verify_notices_a_sequence_of_another_table(self, finished, goldiprox):
        folder, _ = finished
        goldiprox("irreducible", *NOISY, "--seed", "5", "--out", "other.arrow")
        code, _, err = goldiprox("verify", folder / "sequence.arrow", "other.arrow")
        assert code == 1
        assert "not made from the irreducible table" in err

    def test_verify_notices_files_of_different_runs(self, finished, goldiprox, tmp_path):
        folder, _ = finished
        path = tmp_path / "x.arrow"
        for change, said in (
            ({"data": {"fingerprint": "sha256:0", "length": 4_000}}, "made from different data"),
            ({"parents": {"split": "sha256:0"}}, "different training sides"),
        ):
            path.write_bytes((folder / "sequence.arrow").read_bytes())
            rewrite_header(path, **change)
            code, _, err = goldiprox("verify", folder / "irreducible.arrow", path)
            assert (code, said in err) == (1, True), err

    def test_verify_compares_with_a_receipt(self, finished, goldiprox, tmp_path):
        folder, _ = finished
        data, sequence = prepare(DataConfig(noise=0.1)).data, gp.Sequence.open(folder / "sequence.arrow")
        steps = list(sequence)
        for name, order in (("good", steps), ("bad", [*steps[:4], *steps[5:], steps[4]])):
            for _ in gp.receipt(DataLoader(gp.WithIds(data), batch_sampler=order), tmp_path / name):
                pass
        files = [folder / "irreducible.arrow", folder / "sequence.arrow"]
        code, out, err = goldiprox("verify", *files, "--receipt", "good")
        assert (code, "good  agrees with the sequence" in out) == (0, True), err
        code, out, _ = goldiprox("verify", *files, "--receipt", "bad", "--json")
        shown = {f["path"]: f for f in json.loads(out)["files"]}
        assert code == 1
        assert "differ first at step 4" in shown["bad"]["problem"]
        assert [shown[str(f)]["ok"] for f in files] == [True, True]
        shuffled = sequence.shuffled(3, seed=7)
        for _ in gp.receipt(DataLoader(gp.WithIds(data), batch_sampler=shuffled), tmp_path / "shuffled"):
            pass
        for order, expected in ((["--window", "3", "--seed", "7"], 0), (["--window", "3"], 1), ([], 1)):
            assert goldiprox("verify", *files, "--receipt", "shuffled", *order)[0] == expected
        code, _, err = goldiprox("verify", *files, "--window", "3")
        assert (code, "add --receipt" in err) == (2, True)
        code, _, err = goldiprox("verify", files[0], "--receipt", "good")
        assert (code, "compared with one sequence; 0 sound ones" in err) == (2, True)
        code, _, err = goldiprox("verify", "good")
        assert (code, "is a receipt" in err) == (1, True)

    def test_verify_of_something_else(self, goldiprox, tmp_path):
        with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as f, pa.ipc.new_stream(f, pa.schema([("id", pa.int64())])):
            pass
        code, _, err = goldiprox("verify", "x.arrow")
        assert code == 1
        assert "not a GoldiProx file" in err

    def test_text_from_files_does_not_command_the_terminal(self, finished, goldiprox, tmp_path):
        folder, _ = finished
        path = tmp_path / "x.arrow"
        path.write_bytes((folder / "sequence.arrow").read_bytes())
        rewrite_header(path, config={"keep": 32, "\x1b[2J": "\ud800\x07", "data": "x", "num_train": 0})
        code, out, _ = goldiprox("inspect", path)
        assert code == 0
        assert "\\x1b[2J" in out
        assert "\\ud800\\x07" in out
        code, _, err = goldiprox("verify", path, "--data", "mnist5k")
        assert code == 1
        assert "made from other data" in err
        rewrite_header(path, **{"\x1b[2J": 1})
        code, _, err = goldiprox("inspect", path)
        assert (code, "\x1b[2J" in err) == (1, False)


def test_data_list(goldiprox, tmp_path):
    (tmp_path / "mnist").mkdir()
    code, out, _ = goldiprox("data", "list", "--json")
    assert code == 0
    listed = json.loads(out)
    assert set(listed) == {"mnist5k", "mnist", "qmnist", "cifar10", "cinic10"}
    assert {name for name, about in listed.items() if about["present"]} == {"mnist5k", "mnist"}
    assert listed["cinic10"]["where"] == "cinic10"
    assert listed["cifar10"]["shape"] == [3, 32, 32]
    code, out, _ = goldiprox("data", "list")
    assert code == 0
    assert "huggingface.co/datasets/uoft-cs/cifar10" in out
    assert "huggingface.co/datasets/ylecun/mnist" not in out  # which is there


def test_data_check(goldiprox, tmp_path):
    (tmp_path / "checked_data.py").write_text(
        "import torch\n"
        "x = torch.arange(10).float()[:, None] + torch.arange(2)\n"
        "x[4], x[7], x[9] = x[1], x[2], torch.zeros(2)\n"
        "pairs = lambda x, y: [(a, b) for a, b in zip(x, y)]\n"
        "tested = x[[0, 3]] + torch.tensor([[0.5], [0]])\n"
        "def load(): return pairs(x, [0, 1, 0, 1, 1, 0, 1, 1, 0, 1]), pairs(tested, [0, 1])\n"
    )
    code, out, err = goldiprox("data", "check", "checked_data:load", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["train"], found["test"], found["input_shape"], found["classes"]) == (10, 2, [2], 2)
    assert found["copies"]["named"] == {
        "within_train": [[4, 1], [7, 2]],
        "contradicting": [[7, 2]],
        "test_in_train": [[1, 3]],
    }
    assert found["constant"] == {"train": 1, "test": 0, "named": [9]}
    assert [c["train"] for c in found["labels"]["by_class"]] == [4, 6]
    assert (found["labels"]["lowest"], found["labels"]["highest"]) == (0, 1)
    assert found["fingerprint"] == gp.fingerprint(gp.load("checked_data:load").train)
    code, out, _ = goldiprox("data", "check", "checked_data:load")
    assert code == 0
    assert "1: 7 (as 2)" in out
    code, out, _ = goldiprox("data", "check")
    assert code == 0
    assert "4,000" in out


def test_data_check_of_real_data(goldiprox, real_data):
    code, out, _ = goldiprox("data", "check", "mnist", "--data-dir", real_data, "--json")
    found = json.loads(out)
    assert found["train"] == 60_000
    assert (found["copies"]["within_train"], found["copies"]["test_in_train"]) == (0, 0)


def test_completion_completes():
    """As a shell asks for it, once `goldiprox --install-completion` has told it to."""
    script = Path(sys.executable).with_name("goldiprox")
    if not script.exists():
        pytest.skip("the command is not installed beside this interpreter")
    words = {"_GOLDIPROX_COMPLETE": "complete_bash", "COMP_WORDS": "goldiprox ins", "COMP_CWORD": "1"}
    done = subprocess.run([script], env={**os.environ, **words}, capture_output=True, text=True)
    assert done.stdout.split() == ["inspect"], done.stderr


def test_deterministic_excludes_kernels_that_vary(goldiprox):
    try:
        code, _, err = goldiprox("select", *QUICK, "--acquisition", "loss", "--deterministic")
        assert code == 0, err
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_small_models_use_one_thread_and_the_count_is_put_back():
    from goldiprox.settings import RunConfig
    from goldiprox.stages import Stages

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        counts = {}
        for name, threads in (("mlp128", None), ("mlp512", None), ("small_cnn", None), ("mlp128", 2)):
            stages = Stages(RunConfig(num_threads=threads, device="cpu"))
            with stages.threads(stages.build(name, "model", 0)):
                counts[name, threads] = torch.get_num_threads()
            assert torch.get_num_threads() == 2
        assert counts == {("mlp128", None): 1, ("mlp512", None): 1, ("small_cnn", None): 2, ("mlp128", 2): 2}
    finally:
        torch.set_num_threads(before)


def test_next_commands_fit_small_data_and_keep_ones_own_model(goldiprox, tmp_path):
    (tmp_path / "tiny.py").write_text(
        "import torch\n"
        "def load(): return [(torch.tensor([float(i % 2), 1.0]), i % 2) for i in range(400)], [(torch.ones(2), 1)]\n"
        "def net(shape, classes): return torch.nn.Linear(2, classes)\n"
    )
    command = ["irreducible", "--data", "tiny:load", "--proxy", "tiny:net"]
    for stage in ("select", "train", "inspect"):
        code, out, err = goldiprox(*command)
        assert code == 0, err
        command = out.rpartition("Next: goldiprox ")[2].split()
        assert command[0] == stage
    assert gp.Sequence.open("sequence.arrow").header.config["proxy"] == "tiny:net"


def test_version_and_help(goldiprox):
    code, out, _ = goldiprox("--version")
    assert (code, out.strip()) == (0, f"goldiprox {gp.__version__}")
    for command in ([], ["run"], ["irreducible"], ["select"], ["train"], ["inspect"], ["verify"], ["data"]):
        assert goldiprox(*command, "--help")[0] == 0


def test_equal_data_flags_give_equal_data_whatever_the_seed_of_training():
    a, b = (prepare(DataConfig(noise=0.2, noise_kind="instance", white_noise=0.1, duplicates=0.1)) for _ in range(2))
    assert gp.fingerprint(a.data) == gp.fingerprint(b.data)
    assert a.split.digest == b.split.digest
    clean = prepare(DataConfig()).data
    holdout = torch.as_tensor(a.split.holdout)
    assert torch.equal(a.data.y[holdout], clean.y[holdout])
    assert torch.equal(a.data.x[holdout], clean.x[holdout])
    assert a.truth.corrupted.sum() > 0
    noisy_holdout = prepare(DataConfig(holdout_noise=0.2))
    assert set(noisy_holdout.truth.mislabelled.nonzero()[0]) <= set(a.split.holdout)


@pytest.mark.parametrize(
    ("seed", "epochs"), [(0, 8), *(pytest.param(seed, 20, marks=pytest.mark.slow) for seed in (0, 1, 2))]
)
def test_the_papers_claim_on_real_mnist(goldiprox, real_data, seed, epochs):
    """10% label noise: reducible loss above uniform and far above high loss; it avoids what is corrupted."""
    code, out, err = goldiprox(
        "run", "--data", "mnist", "--data-dir", real_data, "--proxy", "mlp128", "--model", "mlp512", "--noise", "0.1",
        "--preset", "paper", "--seed", seed, "--epochs", epochs, "--json", "--device", "cpu",
    )  # fmt: skip
    assert code == 0, err
    result = json.loads(out)
    accuracy = {name: r["accuracy"] for name, r in result["results"].items()}
    assert accuracy["reducible_loss"] > accuracy["uniform"]
    assert accuracy["reducible_loss"] > accuracy["loss"] + 0.1
    corrupted = result["corrupted"]
    assert corrupted["reducible_loss"] <= 0.04
    assert 0.08 < corrupted["data"] < 0.1
    assert corrupted["loss"] > 0.4
