"""`goldiprox data`: which data sets are there, and what is in one."""

from shlex import quote
from typing import Annotated, Any

import typer

from goldiprox.cli import options as o
from goldiprox.cli.console import facts, next_command, out, print_json, printable, readable, table
from goldiprox.data import load, sources
from goldiprox.data.health import examine
from goldiprox.errors import some

app = typer.Typer(help="Data sets: what is there, and what is in it.", no_args_is_help=True)

DataDir = Annotated[str | None, typer.Option(help="Where data sets lie (or GOLDIPROX_DATA).")]
MAX_CLASSES_SHOWN = 30


@app.command("list")
def list_data(data_dir: DataDir = None, json: o.Json = False) -> None:
    """List the built-in data sets: where each is looked for, whether it is there, what it is, how to get it."""
    found = sources.available(data_dir)
    if json:
        return print_json(found)
    rows = []
    for name, about in found.items():
        sizes = f"{about['train']:,} + {about['holdout']:,}" if about["holdout"] else f"{about['train']:,}"
        shape = "x".join(map(str, about["shape"]))
        rows.append([name, "yes" if about["present"] else "no", sizes, f"{about['test']:,}", shape, about["where"]])
    out.print(table("Built-in data sets", ["name", "there", "train (+ holdout)", "test", "shape", "looked for"], rows))
    absent = {name: about for name, about in found.items() if not about["present"]}
    if absent:
        out.print(facts("How to get the others", [[name, about["get"]] for name, about in absent.items()]))
        out.print("Say where data sets lie with --data-dir or GOLDIPROX_DATA.")
    out.print(
        "Your own: a folder of images (train/CLASS/*.png, or CLASS/*.png), Parquet files, package.module:callable."
    )
    return next_command("data check mnist5k")


@app.command("check")
def check_data(
    name: Annotated[
        str, typer.Argument(help="A built-in name, a folder, a Parquet file, or package.module:callable.")
    ] = "mnist5k",
    data_dir: DataDir = None,
    image_size: Annotated[str | None, typer.Option(help="Of your own images: crop and resize to this.")] = None,
    json: o.Json = False,
) -> None:
    """Open a data set; show sizes, classes, exact copies, images that show nothing, and its fingerprint."""
    found = {"data": name, **examine(load(name, data_dir, image_size=image_size))}
    if json:
        return print_json(found)
    simple = ("train", "holdout", "test", "input_shape", "dtype", "classes", "fingerprint")
    rows = [[key.replace("_", " "), readable(found[key])] for key in simple if found[key] != 0]
    out.print(facts(name, rows + _findings(found)))
    if found["labels"]:
        out.print(_balance(found["labels"], found["train"], found["test"]))
    flags = f" --data-dir {quote(data_dir)}" if data_dir else ""
    flags += f" --image-size {quote(image_size)}" if image_size else ""
    return next_command(f"run --data {quote(name)}{flags}")


def _findings(found: dict[str, Any]) -> list[list[str]]:
    copies, constant = found["copies"], found["constant"]

    def pairs(name: str) -> str:
        if not copies[name]:
            return "none"
        return f"{copies[name]:,}: " + some(f"{id} (as {of})" for id, of in copies["named"][name][:3])

    constant_ids = f"{constant['train']:,}: {some(constant['named'], 3)}" if constant["train"] else "none"
    return [
        ["exact copies in train", pairs("within_train")],
        ["... with another label", pairs("contradicting")],
        ["test examples in train", pairs("test_in_train")],
        ["constant inputs in train", constant_ids],
        ["constant inputs in test", f"{constant['test']:,}" if constant["test"] else "none"],
    ]


def _balance(labels: dict[str, Any], num_train: int, num_test: int) -> Any:
    classes = labels["by_class"]
    if len(classes) > MAX_CLASSES_SHOWN:  # the rarest and the most frequent say most
        ordered = sorted(classes, key=lambda c: c["train"])
        half = MAX_CLASSES_SHOWN // 2
        classes = ordered[:half] + ordered[-half:]
    rows = [
        [
            f"{c['label']}" if c["name"] == str(c["label"]) else f"{c['label']}  {printable(c['name'])}",
            f"{c['train']:,}",
            f"{c['train'] / max(num_train, 1):.1%}",
            f"{c['test']:,}",
            f"{c['test'] / max(num_test, 1):.1%}",
        ]
        for c in classes
    ]
    shown = "" if len(classes) == len(labels["by_class"]) else f" (the {len(classes)} rarest and most frequent)"
    title = f"Classes{shown}; labels {labels['lowest']} to {labels['highest']}"
    return table(title, ["class", "train", "", "test", ""], rows)
