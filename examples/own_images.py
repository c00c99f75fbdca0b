"""A folder of images, a folder per class: from there to a sequence, a page to look at, and a model of one's own.

Here digits are written as PNG files first; put your photographs there instead. The command in the middle may as well be
typed into a shell.
"""

import subprocess
import sys
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import goldiprox as gp


def write_images(folder: Path, number: int) -> None:
    digits, _ = gp.load("mnist5k")
    for id in range(0, len(digits), len(digits) // number):
        place = folder / f"digit-{int(digits.y[id])}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.x[id, 0].numpy()).save(place / f"{id:05}.png")


def main() -> None:
    write_images(Path("digits"), number=500)
    options = "--data digits --out digits-run --force --candidates 80 --keep 16 --epochs 10"
    subprocess.run([sys.executable, "-m", "goldiprox", "run", *options.split()], check=True)
    print("look at digits-run/report.html")

    # A fifth of every class was set aside for testing, the same ones every time.
    train_set, test_set = gp.load("digits")
    sequence = gp.Sequence.open("digits-run/sequence.arrow", data=train_set)
    model = nn.Sequential(nn.Conv2d(1, 16, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 12 * 12, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for x, y in DataLoader(train_set, batch_sampler=sequence):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    print(gp.evaluate_on(test_set)(model))


if __name__ == "__main__":
    main()
