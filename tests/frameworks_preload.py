"""What is slow to import, for the server that tests/frameworks_worker.py forks its processes from."""

import pytorch_lightning
import torchdata.stateful_dataloader
import transformers
from transformers import Trainer, TrainingArguments

import frameworks_worker
import goldiprox.integrations.accelerate
import goldiprox.integrations.huggingface
import goldiprox.integrations.lightning
import text_task

__all__ = [
    "Trainer",
    "TrainingArguments",
    "frameworks_worker",
    "goldiprox",
    "pytorch_lightning",
    "text_task",
    "torchdata",
    "transformers",
]
