"""Readers under hostile input: ``python tests/fuzz.py sequence --inputs 1000000 [--guided]``.

Half of the inputs are files with bytes changed at random; the other half are changed with the format in mind and
sealed again, so that they pass the checksums and reach what lies behind them. With ``--guided``, atheris
(``pip install atheris``) chooses what to change by the code that it reaches. A reader passes when it returns, or
raises an error of ours, and when bytes changed without sealing give no ids but the right ones.
"""

import argparse
import inspect
import io
import json
import operator
import random
import resource
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

import goldiprox as gp
from goldiprox import artifacts, follow, inspection, lazy, messages, receipts, sequence
from goldiprox import irreducible as irreducible_module
from goldiprox.data import parquet
from goldiprox.errors import GoldiproxError
from goldiprox.irreducible import Rivals

MEMORY = 8 * 2**30  # address space beyond which an allocation is a finding; torch alone maps a few GiB
VALUES = [0, 1, -1, 2, 7, 255, 2**31, 2**32, 2**62, 2**63, 2**64, -(2**63), 10**400, 0.5, 1e308, float("nan"), True]
VALUES += [None, "", "x", "id", "uint8", "uint64", "float32", "string", "\ud800", "\x1b[2J", "sequence", "irreducible"]
VALUES += [[], {}, [[]], {"keep": 1}, {"id": "uint8"}, ["uint8"], {"length": 5, "fingerprint": "x"}]


def sequence_seed(folder: Path) -> bytes:
    path = folder / "seed.arrow"
    config = {"steps": 4, "num_train": 50, "data": {"noise": 0.1}}
    with gp.SequenceWriter(
        path,
        data={"fingerprint": "sha256:0", "length": 300},
        keep=2,
        config=config,
        parents={"split": "sha256:1"},
        columns=("score",),
        flush_rows=4,
        force=True,
    ) as writer:
        for step in range(4):
            writer.append(torch.tensor([step, step + 250]), {"score": torch.tensor([0.5, -1.0])})
    return path.read_bytes()


def irreducible_seed(folder: Path) -> bytes:
    values = torch.full((300,), torch.nan)
    values[::7] = 0.25
    data, rivals = {"fingerprint": "sha256:0", "length": 300}, Rivals(values.floor().nan_to_num(), values)
    table = gp.IrreducibleLosses(values, data=data, parents={"split": "x"}, rivals=rivals)
    return table.save(folder / "seed.arrow", force=True).read_bytes()


def receipt_seed(folder: Path) -> bytes:
    sequence_seed(folder)
    batches = [gp.Batch(torch.tensor([step, step + 250]), (), ()) for step in range(4)]
    list(gp.receipt(batches, folder / "receipt.arrow", data=Fingerprinted(), force=True))
    return (folder / "receipt.arrow").read_bytes()


class Fingerprinted:
    """A data set of which only the name is asked."""

    def fingerprint(self) -> str:
        return "sha256:0"

    def __len__(self) -> int:
        return 300


def parquet_seed(folder: Path) -> bytes:
    def encode(format: str) -> dict[str, object]:
        buffer = io.BytesIO()
        Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(buffer, format)
        return {"bytes": buffer.getvalue(), "path": "a/b.png"}

    images = pa.array([encode(f) for f in ("PNG", "PNG", "JPEG", "BMP")])
    table = pa.table({"image": images, "label": pa.array([0, 1, 2, 1])})
    info = {"info": {"features": {"label": {"names": ["a", "b", "c"]}}}}
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(info)}), folder / "seed.parquet")
    return (folder / "seed.parquet").read_bytes()


def read_sequence(path: Path) -> list[int]:
    """Everything that is done with a sequence; its ids as far as they are intact."""
    artifacts.read_header(path)
    for partial in (False, True):
        try:
            opened = gp.Sequence.open(path, partial=partial)
        except GoldiproxError:
            if partial:
                raise
            continue
        for step in opened:
            assert len(step) == opened.keep
        assert opened.digest.startswith("sha256:")
        assert inspection.statistics(opened).steps == len(opened)
        for name in opened.header.columns:
            opened.column(name)
        opened.load_state_dict({"step": 0})
        inspection.verify(opened)
    return opened.ids.tolist()


def read_large(path: Path) -> list[int]:
    """A sequence opened as one too large to be checked at once: every part when it is first read."""
    with mock.patch.object(lazy, "EAGER_BYTES", 0):
        opened = gp.Sequence.open(path)
        assert [opened[step].tolist() for step in reversed(range(len(opened)))][::-1] == list(opened)
        assert opened.digest.startswith("sha256:")
        assert inspection.statistics(opened).steps == len(opened)
        inspection.verify(opened)
        return opened.ids.tolist()


def no_sleep(seconds: float) -> None:
    """Nobody writes: there is nothing to wait for."""


def read_unfinished(path: Path) -> list[int]:
    """A file that was broken off, followed and continued: rows that were there stay as they were."""
    partial = path.with_name(path.name + ".partial")
    path.replace(partial)
    try:
        with mock.patch("time.sleep", no_sleep):
            followed = gp.Sequence.open(path, follow=True, timeout=0)
            assert [followed[step].tolist() for step in range(min(len(followed), 9))] == list(followed)[:9]
    except GoldiproxError:
        pass
    header = artifacts.read_header(partial)
    before = gp.Sequence.open(partial, partial=True).ids.tolist()
    num_rows = len(before) // 2
    try:
        artifacts.TableWriter(path, header, resume_at=num_rows).abandon()
    finally:
        after = gp.Sequence.open(partial, partial=True)._table.column("id").tolist()
    assert after == before[:num_rows]
    return before


def read_irreducible(path: Path) -> list[int]:
    table = gp.IrreducibleLosses.open(path)
    assert table.digest.startswith("sha256:")
    return table.ids.tolist()


def read_receipt(path: Path) -> list[int]:
    opened = gp.Sequence.open(path.with_name("seed.arrow"))
    assert receipts.compare(opened, path) == 4
    return opened.ids.tolist()


def read_parquet(path: Path) -> list[int]:
    images, labels, names = parquet.read_images([path])
    assert len(images) == len(labels)
    assert all(isinstance(n, str) for n in names)
    return labels.tolist()


READERS: dict[str, tuple[Callable[[Path], bytes], Callable[[Path], list[int]]]] = {
    "sequence": (sequence_seed, read_sequence),
    "large": (sequence_seed, read_large),
    "unfinished": (sequence_seed, read_unfinished),
    "irreducible": (irreducible_seed, read_irreducible),
    "receipt": (receipt_seed, read_receipt),
    "parquet": (parquet_seed, read_parquet),
}


def change_bytes(content: bytes, rng: random.Random) -> bytes:
    """A few bytes flipped, overwritten, removed, repeated or moved."""
    made = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at, length = rng.randrange(len(made) + 1), rng.choice((1, 1, 4, 8, rng.randrange(1, 200)))
        match rng.randrange(6):
            case 0 if at < len(made):
                made[at] ^= 1 << rng.randrange(8)
            case 1:
                made[at : at + length] = rng.randbytes(len(made[at : at + length]))
            case 2:
                del made[at : at + length]
            case 3:
                made[at:at] = made[rng.randrange(len(made) + 1) :][:length]
            case 4:
                made[at : at + length] = rng.choice((b"\x00", b"\xff", b"\x7f")) * len(made[at : at + length])
            case _:
                made[at : at + 4] = rng.choice((0, 1, 8, 2**31 - 1, 2**32 - 8, len(made))).to_bytes(4, "little")
    return bytes(made)


def change_json(value: object, rng: random.Random) -> object:
    """The value with one part of it replaced, removed or nested."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        if rng.random() < 0.1:
            return value | {rng.choice(["id", "seal", "more", "\x00", ""]): rng.choice(VALUES)}
        return value | {key: change_json(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.5:
        return [*value[:-1], change_json(value[-1], rng)]
    if rng.random() < 0.02:
        return json.loads("[" * 300 + "]" * 300)
    return rng.choice(VALUES)


def change_fields(content: bytes, rng: random.Random) -> bytes:
    """The file with something else in a header or a stamp, its text padded or cut to fit where that is possible."""
    starts = [at for at in range(0, len(content) - 8, 8) if content[at : at + 4] == b"\xff\xff\xff\xff"]
    start = rng.choice(starts or [0])
    at = content.find(messages._SEAL, start)
    size = int.from_bytes(content[at - 4 : at], "little")
    try:
        fields = json.loads(content[at : at + size])
    except ValueError:
        return change_bytes(content, rng)
    if not isinstance(fields, dict):
        return change_bytes(content, rng)
    fields.pop("seal", None)
    text = messages._text(change_json(fields, rng)).encode()  # type: ignore[arg-type]
    padding = -(len(text) - size) % 8
    changed = content[: at - 4] + len(text).to_bytes(4, "little") + text + b" " * padding + content[at + size :]
    length = int.from_bytes(content[start + 4 : start + 8], "little") + len(text) - size + padding
    return changed[: start + 4] + (length % 2**32).to_bytes(4, "little") + changed[start + 8 :]


def seal(content: bytes) -> bytes:
    """Makes the checksums hold, as far as there are messages."""
    made, start, seal, columns = bytearray(content), 0, 0, {}
    view = memoryview(content)
    while start < len(made):
        try:
            fields, digits, end = messages._metadata(view, start)
            if start == 0:
                columns = dict(fields["columns"])
            else:
                num_rows = operator.index(fields["num_rows"])
                end += sum(-(-num_rows * np.dtype(t).itemsize // 8) * 8 for t in columns.values())
        except (ValueError, TypeError, KeyError):
            break
        if not digits <= end <= len(made):
            break
        seal = messages._checksum(made, start, digits, end, seal)
        made[digits : digits + 8] = b"%08x" % seal
        start = end
    return bytes(made)


def mutate(content: bytes, rng: random.Random, *, arrow: bool) -> tuple[bytes, bool]:
    """Another file, and whether its checksums were made to hold."""
    if not arrow or rng.random() < 0.5:
        return change_bytes(content, rng), False
    for _ in range(rng.choice((1, 1, 2, 3))):
        content = change_fields(content, rng) if rng.random() < 0.6 else change_bytes(content, rng)
    return seal(content), True


def attempt(read: Callable[[Path], list[int]], path: Path, content: bytes) -> list[int]:
    """The ids that a reader gives; none where it refuses. Anything else than an error of ours gets through."""
    path.unlink(missing_ok=True)  # a reader may still hold the old one mapped
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return read(path)
        except GoldiproxError:
            return []


def fuzz(name: str, inputs: int, seed: int, folder: Path) -> int:
    """Tries so many inputs on a reader; the number that it took without an error."""
    make_seed, read = READERS[name]
    original = make_seed(folder)
    path, rng = folder / "input", random.Random(seed)
    right = attempt(read, path, original)
    taken = 0
    for number in range(inputs):
        content, sealed = mutate(original, rng, arrow=name != "parquet")
        try:
            ids = attempt(read, path, content)
        except BaseException:
            Path(f"finding-{name}-{seed}-{number}").write_bytes(content)
            raise
        taken += bool(ids)
        assert sealed or name == "parquet" or ids == right[: len(ids)], f"wrong ids: input {number} of seed {seed}"
    return taken


def guided(name: str, inputs: int, seed: int, folder: Path) -> None:
    """Lets atheris choose, by the code that is reached; it ends the process, and keeps what it found as a file."""
    import atheris

    make_seed, read = READERS[name]
    for module in (messages, artifacts, follow, sequence, irreducible_module, receipts, parquet, json.decoder):
        for value in list(vars(module).values()):
            for function in vars(value).values() if inspect.isclass(value) else [value]:
                if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
                    atheris.instrument_func(function)
    corpus = folder / "corpus"
    corpus.mkdir()
    (corpus / "seed").write_bytes(make_seed(folder))

    def one_input(content: bytes) -> None:
        attempt(read, folder / "input", content)

    def custom_mutator(content: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if name == "parquet" or rng.random() < 0.3:
            return atheris.Mutate(content, max_size)
        if rng.random() < 0.3:
            return seal(atheris.Mutate(content, max_size))[:max_size]
        return mutate(content or b"\x00", rng, arrow=True)[0][:max_size]

    limits = [f"-runs={inputs}", f"-seed={seed + 1}", "-max_len=8192", "-rss_limit_mb=6000", "-timeout=20"]
    atheris.Setup([sys.argv[0], *limits, str(corpus)], one_input, custom_mutator=custom_mutator)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--guided", action="store_true", help="choose inputs with atheris")
    arguments = parser.parse_args()
    if not arguments.guided:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    memory_file_system = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory_file_system if memory_file_system.is_dir() else None) as folder:
        if arguments.guided:
            return guided(arguments.reader, arguments.inputs, arguments.seed, Path(folder))
        start = time.monotonic()
        taken = fuzz(arguments.reader, arguments.inputs, arguments.seed, Path(folder))
    seconds = time.monotonic() - start
    sys.stdout.write(f"{arguments.reader}: {arguments.inputs:,} inputs, {taken:,} taken, no finding, {seconds:.0f} s\n")
    return None


if __name__ == "__main__":
    main()
