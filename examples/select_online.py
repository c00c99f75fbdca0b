"""plain_loop.py, selecting online: three lines. Make the irreducible losses first:

goldiprox irreducible --holdout 0 --folds 2
"""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import goldiprox as gp

train_set, test_set = gp.load("mnist5k")
model = gp.build("mlp512", (1, 28, 28), 10)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

select = gp.Selector(gp.reducible_loss, irreducible=gp.IrreducibleLosses.open("irreducible.arrow", train_set), keep=32)
loader = DataLoader(gp.WithIds(train_set), batch_size=320, shuffle=True, drop_last=True)
for _, x, y in (select(model, batch) for batch in loader):
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()

print(gp.evaluate_on(test_set)(model))
