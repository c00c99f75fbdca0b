"""What the tests do with frameworks, in processes of their own: one, or several that train together.

The frameworks are slow to import, so that is done once, in a server from which the processes are forked.
"""

import functools
import gc
import json
import multiprocessing
import multiprocessing.forkserver
import os
import socket
import traceback
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

import goldiprox as gp
from conftest import make_blobs, make_irreducible, make_mlp

STEPS, KEEP, CANDIDATES = 6, 8, 80
RANK, WORLD = 0, 1
SECONDS = 200


def picks() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.stack([rng.choice(400, KEEP, replace=False) for _ in range(STEPS)])


def write(folder: Path, data=None) -> Path:
    """A sequence, for the scenarios."""
    path = folder / "sequence.arrow"
    with gp.SequenceWriter(path, data=gp.describe(data or make_blobs()), keep=KEEP) as writer:
        for step in picks():
            writer.append(torch.from_numpy(step))
    return path


def refused(call) -> str:
    """The error of ours that a call ends in."""
    try:
        call()
    except gp.GoldiproxError as e:
        return str(e)
    return ""


class Plain:
    """The batches of a sequence, from a batch sampler that knows no better."""

    batch_size, drop_last = KEEP, True

    def __len__(self):
        return STEPS

    def __iter__(self):
        yield from picks().tolist()


def update(model, optimizer, batch, backward) -> None:
    loss = nn.functional.cross_entropy(model(batch.x), batch.y)
    backward(loss)
    optimizer.step()
    optimizer.zero_grad()


def weights(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def accelerated(folder: Path) -> dict:
    """Accelerate: its traps, replay, selection."""
    from accelerate import Accelerator, DataLoaderConfiguration, InitProcessGroupKwargs, skip_first_batches
    from accelerate.state import AcceleratorState, GradientState

    from goldiprox.integrations import accelerate as integration

    def accelerator(accumulate: int = 1, **settings):
        AcceleratorState._reset_state()
        GradientState._reset_state()
        return Accelerator(
            cpu=True,
            gradient_accumulation_steps=accumulate,
            dataloader_config=DataLoaderConfiguration(**settings),
            kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=60))],
        )

    data = gp.WithIds(make_blobs())
    whole = gp.Sequence.open(folder / "sequence.arrow", data=data)
    mine = gp.Sequence.open(folder / "sequence.arrow", data=data, rank=RANK, world_size=WORLD)
    seen: dict = {}

    def ids(loader) -> list[list[int]]:
        return [batch.ids.tolist() for batch in loader]

    plain = accelerator()
    seen["trap"] = ids(plain.prepare(DataLoader(data, batch_sampler=Plain())))
    seen["merging"] = refused(lambda: ids(plain.prepare(DataLoader(data, batch_sampler=whole))))
    seen["merging, with workers"] = refused(
        lambda: ids(plain.prepare(DataLoader(data, batch_sampler=whole, num_workers=1)))
    )
    seen["twice"] = refused(lambda: ids(plain.prepare(DataLoader(data, batch_sampler=mine))))
    side = gp.CandidateSampler(range(400), CANDIDATES, steps=4)
    seen["candidates"] = refused(lambda: ids(plain.prepare(DataLoader(data, batch_sampler=side))))
    if WORLD > 1:
        seen["divided before"] = refused(lambda: integration.loader(plain, data, mine))
        dispatching = accelerator(dispatch_batches=True)
        loader = dispatching.prepare(DataLoader(data, batch_sampler=whole))
        seen["dispatched"] = refused(lambda: next(iter(loader))) if RANK == 0 else ""
        plain.wait_for_everyone()

    splitting = accelerator(split_batches=True)
    seen["split"] = ids(splitting.prepare(DataLoader(data, batch_sampler=whole)))

    for accumulate in (1, 2):
        ours = accelerator(accumulate)
        model = make_mlp(3)
        loader = integration.loader(ours, data, whole)
        model, optimizer, loader = ours.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
        seen[f"replay, {accumulate}"], updates = [], 0
        for batch in gp.receipt(loader, folder / f"receipt-{accumulate}-{RANK}.arrow", data=data):
            with ours.accumulate(model):
                update(model, optimizer, batch, ours.backward)
                updates += ours.sync_gradients
            seen[f"replay, {accumulate}"].append(batch.ids.tolist())
        seen[f"updates, {accumulate}"], seen[f"weights, {accumulate}"] = updates, weights(model)
        seen[f"skipped, {accumulate}"] = ids(skip_first_batches(loader, 4))

    ours = accelerator()
    seen["kept"], seen["resumed"] = [], []
    model = make_mlp(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    side = gp.CandidateSampler(range(400), CANDIDATES, seed=1, steps=STEPS)
    loader = integration.loader(ours, data, side)
    model, optimizer = ours.prepare(model, optimizer)
    table = make_irreducible(data.dataset)
    select = integration.selector(ours, gp.reducible_loss, irreducible=table, keep=KEEP, rule=gp.gumbel_top_k(0.5))

    def train(batches, kept) -> None:
        for number, batch in enumerate(batches):
            if kept is seen["kept"] and number == 2:
                ours.save_state(str(folder / "state"))
            batch = select(model, batch)
            kept.append(batch.ids.tolist())
            update(model, optimizer, batch, ours.backward)

    train(loader, seen["kept"])
    ours.load_state(str(folder / "state"))
    assert select.step == 2
    train(skip_first_batches(loader, 2), seen["resumed"])
    ours.end_training()
    return seen


def lightning_module(model: nn.Module, on_batch):
    """A module that trains for real, and says which ids it got."""
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, number):
            batch = on_batch(self, batch)
            return nn.functional.cross_entropy(self.model(batch.x), batch.y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.model.parameters(), lr=0.1)

    return Module()


def trained_by_lightning(folder: Path) -> dict:
    """Lightning: its traps, replay, selection."""
    import pytorch_lightning as pl

    from goldiprox.integrations import lightning as integration
    from goldiprox.integrations.replayed import Replayed

    data = gp.WithIds(make_blobs())
    whole = gp.Sequence.open(folder / "sequence.arrow", data=data)
    mine = gp.Sequence.open(folder / "sequence.arrow", data=data, rank=RANK, world_size=WORLD)
    order = picks().ravel().tolist()
    seen: dict = {}

    def fit(what, *, on_batch=lambda module, batch: batch, **settings):
        ids: list[list[int]] = []

        def noted(module, batch):
            batch = on_batch(module, batch)
            ids.append(batch.ids.tolist())
            return batch

        module = lightning_module(make_mlp(3), noted)
        checkpoint = settings.pop("ckpt_path", None)
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=WORLD,
            strategy="ddp" if WORLD > 1 else "auto",
            logger=False,
            enable_checkpointing=settings.pop("enable_checkpointing", False),
            enable_progress_bar=False,
            enable_model_summary=False,
            **{"max_epochs": 1, **settings},
        )
        given = {"datamodule": what} if isinstance(what, pl.LightningDataModule) else {"train_dataloaders": what}
        trainer.fit(module, ckpt_path=checkpoint, **given)
        return ids, trainer, module

    in_order = DataLoader(Subset(data, order), batch_size=KEEP // WORLD, shuffle=False)
    seen["trap"] = fit(in_order)[0]
    guarded = Replayed(data, whole, KEEP // WORLD, remedy="Use the data module")
    seen["shuffled"] = refused(lambda: fit(DataLoader(guarded, batch_size=KEEP // WORLD, shuffle=False)))
    seen["made anew"] = refused(lambda: fit(DataLoader(data, batch_sampler=whole)))
    if WORLD > 1:
        seen["own sampler"] = fit(DataLoader(data, batch_sampler=mine), use_distributed_sampler=False)[0]
        seen["divided before"] = refused(lambda: fit(integration.DataModule(data, mine)))
    seen["overfit"] = refused(lambda: fit(integration.DataModule(data, whole), overfit_batches=2))
    for own in (True, False):
        seen[f"replay, {own}"], trainer, module = fit(
            integration.DataModule(data, whole), use_distributed_sampler=own, max_epochs=2
        )
        seen[f"updates, {own}"], seen["weights"] = trainer.global_step, weights(module)
    seen["accumulated"], trainer, _ = fit(integration.DataModule(data, whole), accumulate_grad_batches=2)
    seen["updates, accumulated"] = trainer.global_step

    side = gp.CandidateSampler(range(400), CANDIDATES, seed=1, steps=STEPS)
    table = make_irreducible(data.dataset)

    def selected(**settings):
        select = integration.Selection(gp.reducible_loss, irreducible=table, keep=KEEP, rule=gp.gumbel_top_k(0.5))
        ids, trainer, _ = fit(
            settings.pop("data", integration.DataModule(data, side)),
            on_batch=lambda module, batch: select(module.model, batch),
            callbacks=[select, *settings.pop("callbacks", [])],
            **settings,
        )
        return ids, trainer, select

    seen["kept"] = selected()[0]
    seen["not begun"] = refused(lambda: integration.Selection(gp.loss, keep=4)(make_mlp(0), None))
    if WORLD == 1:
        from torchdata.stateful_dataloader import StatefulDataLoader

        stateful = integration.DataModule(data, side, kind=StatefulDataLoader)
        saving = pl.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=2, save_top_k=-1)
        ids = selected(data=stateful, callbacks=[saving], enable_checkpointing=True)[0]
        rest, trainer, select = selected(data=stateful, ckpt_path=folder / "step=2.ckpt")
        seen["resumed"] = [*ids[:2], *rest]
        assert select.select.step == trainer.global_step == STEPS
    return seen


def make_numbered_text():
    """Text whose examples know their ids; which labels are wrong."""
    from text_task import make_text

    data, wrong = make_text(400)
    return data.remove_columns("text").add_column("id", list(range(400))), wrong


def trained_by_transformers(folder: Path) -> dict:
    """The Trainer of transformers: its traps, replay, selection."""
    from transformers import Trainer, TrainingArguments

    from goldiprox.integrations import huggingface as integration
    from text_task import collator, make_floor, make_transformer

    data, wrong = make_numbered_text()
    sequence = gp.Sequence.open(folder / "sequence.arrow", data=data)
    seen: dict = {}

    def arguments(**settings):
        return TrainingArguments(
            str(folder / settings.pop("out", "out")),
            **{
                "use_cpu": True,
                "report_to": [],
                "disable_tqdm": True,
                "save_strategy": "no",
                "logging_strategy": "no",
                "remove_unused_columns": False,
                "learning_rate": 1e-2,
                "optim": "sgd",
                "lr_scheduler_type": "constant",
                "ddp_timeout": 60,
                # This version multiplies the losses of classifiers by the number of processes otherwise.
                "average_tokens_across_devices": False,
                "per_device_train_batch_size": KEEP // WORLD,
                **settings,
            },
        )

    class Noting:
        """Notes the ids that a step really gets, and hides them from the model."""

        noted: list

        def training_step(self, model, inputs, *args, **settings):
            inputs = dict(inputs)
            self.noted = [*getattr(self, "noted", []), inputs.pop("id").tolist()]
            return super().training_step(model, inputs, *args, **settings)

    class Noted(Noting, Trainer):
        pass

    class Selective(Noting, integration.SelectiveTrainer):
        def _forward(self, model, inputs):
            return super()._forward(model, {name: value for name, value in inputs.items() if name != "id"})

        def training_step(self, model, inputs, *args, **settings):
            assert inputs["id"].tolist() in [ids.tolist() for ids in self.kept_ids]
            return super().training_step(model, inputs, *args, **settings)

    def trained(kind, data, *, replay=None, resume=None, note=None, then=lambda trainer: None, **settings):
        own = {
            name: settings.pop(name)
            for name in ("candidates", "irreducible", "rule", "acquisition")
            if name in settings
        }
        trainer = kind(make_transformer(), arguments(**settings), train_dataset=data, data_collator=collator(), **own)
        if replay is not None:
            integration.replay(trainer, replay)
        then(trainer)
        trainer.train(resume_from_checkpoint=resume)
        if note:
            seen[f"updates, {note}"], seen[f"weights, {note}"] = trainer.state.global_step, weights(trainer.model)
        return trainer.noted

    in_order = Subset(data, picks().ravel().tolist())
    seen["trap"] = trained(Noted, in_order, num_train_epochs=1)
    seen["in order"] = trained(Noted, in_order, num_train_epochs=1, train_sampling_strategy="sequential")

    def shuffling(trainer) -> None:
        trainer.args.train_sampling_strategy = "random"

    def merging(trainer) -> None:
        trainer._train_batch_size *= 2

    for name, then in {"shuffled": shuffling, "merged": merging}.items():
        seen[name] = refused(lambda then=then: trained(Noted, data, replay=sequence, then=then))
    seen["replay"] = trained(Noted, data, replay=sequence, note="replay")
    seen["with workers"] = trained(Noted, data, replay=sequence, dataloader_num_workers=2)
    seen["accumulated"] = trained(Noted, data, replay=sequence, gradient_accumulation_steps=2, note="accumulated")
    choice = {
        "candidates": CANDIDATES,
        "irreducible": make_floor(data, wrong),
        "rule": gp.gumbel_top_k(0.5),
        "num_train_epochs": 2,
    }
    seen["kept"] = trained(Selective, data, note="kept", **choice)
    if WORLD == 1:
        saved = {"save_strategy": "steps", "save_steps": 3}
        trained(Noted, data, replay=sequence, out="replayed", **saved)
        resume = str(folder / "replayed" / "checkpoint-3")
        seen["replay resumed"] = trained(Noted, data, replay=sequence, out="replayed", resume=resume, note="resumed")
        trained(Selective, data, out="kept", **saved, **choice)
        resume = str(folder / "kept" / "checkpoint-3")
        seen["kept resumed"] = trained(Selective, data, out="kept", resume=resume, **choice)
        counting = choice | {"rule": gp.discounted_top_k(0.5)}
        seen["kept by turns"] = trained(Selective, data, **counting)
        seen["turns resumed"] = refused(lambda: trained(Selective, data, out="kept", resume=resume, **counting))
        accumulated = {"gradient_accumulation_steps": 2, "candidates": 40}
        seen["kept accumulated"] = trained(Selective, data, **{**choice, **accumulated})
        loss = {"candidates": CANDIDATES, "acquisition": gp.loss, "num_train_epochs": 1}
        for name, given, workers in (("of columns", data, 0), ("of items", Subset(data, range(400)), 2)):
            seen[f"kept {name}"] = trained(Selective, given, dataloader_num_workers=workers, **loss)
        seen["refusals"] = refusals_of_transformers(data, sequence, arguments)
        seen["losses"] = losses_of_transformers()
        seen |= learnt(arguments)
    return seen


def refusals_of_transformers(data, sequence, arguments) -> dict[str, str]:
    from transformers import Trainer

    from goldiprox.integrations import huggingface as integration
    from text_task import collator, make_floor, make_text, make_transformer

    def replay(given=data, times=1, **settings) -> str:
        trainer = Trainer(make_transformer(), arguments(**settings), train_dataset=given)
        return refused(lambda: [integration.replay(trainer, sequence) for _ in range(times)])

    def selecting(given=data, **settings) -> str:
        settings = {"candidates": CANDIDATES, "acquisition": gp.loss, **settings}

        def train() -> None:
            named = {"args": arguments(), "train_dataset": given, "data_collator": collator()}
            integration.SelectiveTrainer(make_transformer(), **named, **settings).train()

        return refused(train)

    return {
        "no data": replay(given=None),
        "other data": replay(given=data.select(range(300))),
        "too many steps": replay(max_steps=7),
        "batch size to be found": replay(auto_find_batch_size=True),
        "split batches": replay(accelerator_config={"split_batches": True}),
        "does not divide": replay(gradient_accumulation_steps=3),
        "twice": replay(times=2),
        "too few candidates": selecting(candidates=4),
        "no labels": selecting(data.remove_columns(["label", "id"])),
        "other floor": selecting(irreducible=make_floor(*make_text(400, seed=4))),
    }


def losses_of_transformers() -> dict[str, list[list[float]]]:
    """Of each kind of model, the losses that we take of examples, and its own of one example at a time."""
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        BertForSequenceClassification,
        BertForTokenClassification,
        GPT2Config,
        GPT2LMHeadModel,
    )

    from goldiprox.integrations.huggingface import per_example_loss

    def bert(kind, **settings):
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        return kind(BertConfig(vocab_size=20, max_position_embeddings=8, **sizes, **settings))

    torch.manual_seed(0)
    tokens, rows = torch.randint(0, 20, (4, 6)), torch.arange(4)
    some = tokens.masked_fill(torch.rand(4, 6) < 0.3, -100)
    models = {
        "classes": (bert(BertForSequenceClassification, num_labels=3), rows % 3),
        "numbers": (bert(BertForSequenceClassification, num_labels=1), rows.float()),
        "several labels": (
            bert(BertForSequenceClassification, num_labels=3, problem_type="multi_label_classification"),
            (torch.rand(4, 3) < 0.5).float(),
        ),
        "labels of tokens": (bert(BertForTokenClassification, num_labels=20), some),
        "masked tokens": (bert(BertForMaskedLM), some),
        "next tokens": (
            GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=8, n_embd=16, n_layer=1, n_head=2)),
            some,
        ),
    }
    found = {}
    for name, (model, labels) in models.items():
        model.eval()
        with torch.no_grad():
            ours = per_example_loss(model)(model(input_ids=tokens).logits, labels)
            own = [model(input_ids=tokens[row : row + 1], labels=labels[row : row + 1]).loss for row in rows]
        found[name] = [ours.tolist(), torch.stack(own).tolist()]
    return found


def learnt(arguments) -> dict[str, float]:
    """How well a model does that selects from text with wrong labels, and what it kept of them."""
    from goldiprox.integrations.huggingface import SelectiveTrainer
    from text_task import collator, make_floor, make_text, make_transformer

    kept: list[int] = []

    class Noting(SelectiveTrainer):
        def training_step(self, *args, **settings):
            kept.extend(self.kept_ids[-1].tolist())
            return super().training_step(*args, **settings)

    data, wrong = make_text(1_600)
    settings = {"optim": "adamw_torch", "learning_rate": 2e-3, "num_train_epochs": 8, "remove_unused_columns": True}
    trainer = Noting(
        make_transformer(),
        arguments(per_device_train_batch_size=16, **settings),
        train_dataset=data,
        data_collator=collator(),
        candidates=80,
        irreducible=make_floor(data, wrong),
        rule=gp.gumbel_top_k(0.5),
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())},
    )
    trainer.train()
    test, _ = make_text(400, seed=9, noise=0.0)
    accuracy = trainer.evaluate(test)["eval_accuracy"]
    return {"accuracy": accuracy, "wrong": float(wrong.mean()), "wrong among kept": float(wrong[kept].mean())}


def work(scenario: str, folder: Path, rank: int, world_size: int, port: int) -> None:
    """One process: runs a scenario and writes down what it saw, or how it failed."""
    global RANK, WORLD
    RANK, WORLD = rank, world_size
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    torch.set_num_threads(1)
    gc.freeze()  # Trainer collects garbage at every start; what was imported is none
    multiprocessing.set_start_method("fork", force=True)  # for the loaders' workers, as where users start
    try:
        (folder / f"rank-{rank}.json").write_text(json.dumps(globals()[scenario](folder)))
    except BaseException:
        (folder / f"rank-{rank}.failed").write_text(traceback.format_exc())
        raise


@functools.cache
def start_server():
    """The server, which has imported what is slow to import."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["frameworks_preload"])
    with pytest.MonkeyPatch.context() as patch:  # it imports by the path that it was started with
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        patch.setenv("OMP_NUM_THREADS", "1")
        multiprocessing.forkserver.ensure_running()
    return context


def seen_by(scenario: str, world_size: int, folder: Path) -> list[dict]:
    """What every process of a scenario saw, once all have ended well."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = start_server()
    processes = [
        context.Process(target=work, args=(scenario, folder, rank, world_size, port)) for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
    for process in processes:
        process.kill()
    failed = [path.read_text() for path in sorted(folder.glob("*.failed"))]
    assert [p.exitcode for p in processes] == [0] * world_size, "\n".join(failed)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world_size)]
