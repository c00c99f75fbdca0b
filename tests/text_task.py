"""Text to classify, made here: is what is said of the thing good, given that "not" turns it round?"""

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DataCollatorWithPadding,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    PreTrainedTokenizerFast,
)

import goldiprox as gp

THINGS = ("film", "book", "song", "meal", "trip", "play")
GOOD, BAD = ("fine", "great", "lovely", "superb"), ("dull", "awful", "poor", "weak")
FILLERS = ("really", "quite", "rather", "so", "just", "indeed", "truly")
WORDS = ("[PAD]", "[UNK]", "the", "was", "not", "and", "long", *THINGS, *GOOD, *BAD, *FILLERS)


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")


def sentences(length: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(seed)
    texts, labels = [], rng.integers(0, 2, length)
    for label in labels:
        turned = rng.random() < 0.25
        words = ["the", rng.choice(THINGS), "was", *rng.choice(FILLERS, rng.integers(0, 6))]
        words += ["not"] * turned + [rng.choice(GOOD if label != turned else BAD)]
        texts.append(" ".join(words))
    return texts, labels


def make_text(length: int = 1_200, seed: int = 0, noise: float = 0.1) -> tuple[Dataset, np.ndarray]:
    """Tokenised, and which labels are wrong."""
    texts, labels = sentences(length, seed)
    wrong = np.random.default_rng(seed + 1).random(length) < noise
    encoded = tokenizer()(texts, return_token_type_ids=False)
    columns = {"text": texts, "label": np.where(wrong, 1 - labels, labels).tolist(), **encoded}
    return Dataset.from_dict(columns), wrong


def make_transformer(seed: int = 0) -> DistilBertForSequenceClassification:
    config = DistilBertConfig(
        vocab_size=len(WORDS),
        max_position_embeddings=16,
        dim=32,
        n_layers=2,
        n_heads=2,
        hidden_dim=64,
        initializer_range=0.2,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DistilBertForSequenceClassification(config)


def collator() -> DataCollatorWithPadding:
    return DataCollatorWithPadding(tokenizer())


def make_floor(data: Dataset, wrong: np.ndarray) -> gp.IrreducibleLosses:
    """Irreducible losses of a holdout model that finds nearly all wrong labels unlikely."""
    unlikely = wrong & (np.random.default_rng(5).random(len(data)) < 0.97)
    losses = np.where(unlikely, 3.0, 0.05).astype(np.float32)
    return gp.IrreducibleLosses(torch.from_numpy(losses), data=gp.describe(data))
