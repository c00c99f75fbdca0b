"""Labels that are probably wrong, the likeliest first, and the data without them.

A tenth of the labels is damaged first, so that what is found can be compared with the truth; leave that out for data of
your own. Nothing is held out: each label is judged by a model that learnt from the other half of the data.
"""

import numpy as np
import torch
from torch.utils.data import Subset

import goldiprox as gp
from goldiprox.data.corruption import Truth, corrupt_labels

torch.set_num_threads(1)  # quicker for models this small
data, _ = gp.load("mnist5k")
everything = gp.holdout_split(len(data), data.labels, holdout=0.0)
data, truth = corrupt_labels(data, Truth.of(data), everything.train, 0.1)

table, *_ = gp.irreducible_losses(
    lambda fold: gp.build("mlp128", data.input_shape, 10, seed=fold), data, everything, num_folds=2
)
found = gp.find_suspects(table, data)
for n in range(5):
    print(f"example {found.ids[n]}: labelled {found.labels[n]}, looks like {found.predicted[n]}")

suspects, rest = np.split(found.ids, [int(0.05 * len(data))])
before, among, after = (truth.mislabelled[ids].mean() for ids in (found.ids, suspects, rest))
print(f"wrong labels: {before:.1%} of the data, {among:.1%} of {len(suspects)} suspects, {after:.1%} of the rest")

cleaner = Subset(data, np.sort(rest).tolist())  # train on this, or correct the suspects by hand
assert len(cleaner) == len(data) - len(suspects)
