"""A plain PyTorch loop. The two examples beside it are this file with a few lines changed."""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import goldiprox as gp

train_set, test_set = gp.load("mnist5k")
model = gp.build("mlp512", (1, 28, 28), 10)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

loader = DataLoader(train_set, batch_size=32, shuffle=True)
for x, y in loader:
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()

print(gp.evaluate_on(test_set)(model))
