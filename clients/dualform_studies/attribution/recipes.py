"""The four trainings that the study attributes: their networks, data and optimizers.

Shapes: n samples, b samples of a batch, t tests, w tokens of a window, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

from dualform.extras import missing_package
from dualform_studies.images.data.datasets import Images
from dualform_studies.images.data.download import load_dataset
from dualform_studies.text.corpora import load_corpus

Parameters: TypeAlias = Iterable[nn.Parameter]

TESTED = 500
"""Held-out examples that say how well the network learned: the first images of the test file, or the first windows."""
WINDOW = 32
VOCABULARY = 512
"""Byte pairs learned from the training text."""


class Examples(NamedTuple):
    inputs: Tensor
    """float32[n, 784], pixels from -1 to 1; or int64[n, w], tokens."""
    targets: Tensor
    """int64[n], labels; or int64[n, w], the tokens that follow."""

    def of(self, rows: Any) -> Examples:
        return Examples(self.inputs[rows], self.targets[rows])


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """float32[b]: the cross entropy of each example, for a window the mean over its tokens."""
    each = cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
    return each.view(len(targets), -1).mean(1)


@dataclass(frozen=True)
class Recipe:
    name: str
    network: Callable[[], nn.Module]
    optimizer: Callable[[Parameters], torch.optim.Optimizer]
    words: str
    """Network and optimizer, in words."""
    samples: int
    """The first images of MNIST's training file, or the first windows of Aesop's fables."""
    batch: int
    epochs: int
    text: bool = False
    random: bool = False
    """Whether training draws random numbers, as dropout does."""
    every_way: bool = False
    """Whether ways are run that take more than half an hour on larger networks."""

    @property
    def dataset(self) -> str:
        return "aesop" if self.text else "mnist"

    @property
    def lr(self) -> float:
        return float(self.optimizer([nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"])

    def build(self, seed: int = 0) -> nn.Module:
        """A network whose initial weights follow from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.network()

    def batches(self, seed: int) -> Iterator[NDArray[np.int64]]:
        """int64[b] of every step: all samples in a new order for each epoch, the last batch with what is left."""
        draw = np.random.default_rng(seed)
        for _ in range(self.epochs):
            order = draw.permutation(self.samples)
            yield from (order[start : start + self.batch] for start in range(0, self.samples, self.batch))

    def examples(self, data: Path | None) -> tuple[Examples, Examples]:
        """The training samples, and TESTED held-out examples or all that there are. Raises as the readers of data."""
        return (_windows if self.text else images)(data, self.samples)

    def spoiled(self, trained: Examples, share: float, seed: int) -> tuple[Examples, NDArray[np.bool_]]:
        """The samples with a share of them spoiled, and bool[n], which: another label, or the tokens shuffled."""
        draw = np.random.default_rng(seed)
        wrong = np.zeros(self.samples, dtype=bool)
        wrong[draw.choice(self.samples, size=round(share * self.samples), replace=False)] = True
        rows = torch.from_numpy(np.flatnonzero(wrong))
        inputs, targets = trained.inputs.clone(), trained.targets.clone()
        if self.text:
            tokens = torch.cat([inputs[rows], targets[rows, -1:]], dim=1).numpy()
            shuffled = torch.from_numpy(draw.permuted(tokens, axis=1))
            inputs[rows], targets[rows] = shuffled[:, :-1], shuffled[:, 1:]
        else:
            targets[rows] = (targets[rows] + torch.from_numpy(draw.integers(1, 10, len(rows)))) % 10
        return Examples(inputs, targets), wrong

    def described(self) -> str:
        what = f"windows of {WINDOW} tokens" if self.text else "images"
        return f"{self.words}; {self.samples:,} {what}, {self.batch} a batch, {self.epochs} epochs"

    def quick(self) -> Recipe:
        """The same with less of everything, for a look in minutes."""
        return replace(self, samples=self.samples // 4, batch=self.batch // 2, epochs=max(2, self.epochs // 3))


def _perceptron(activation: type[nn.Module], dropout: float = 0.0) -> nn.Sequential:
    layers = list[nn.Module]()
    for before, after in ((784, 128), (128, 64)):
        layers += [nn.Linear(before, after), activation(), *([nn.Dropout(dropout)] if dropout else [])]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def _convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 16, 8, stride=4, padding=2),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


class _Block(nn.Module):
    """Causal attention and a perceptron, each after a layer normalization. Plain products: they differentiate twice."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.hidden, self.perceptron = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attention(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in parts)
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        later = torch.full(scores.shape[-2:], -torch.inf).triu(1)
        seen = (scores + later).softmax(-1) @ value
        x = x + self.mixed(seen.transpose(-3, -2).flatten(-2))
        found: Tensor = x + self.perceptron(gelu(self.hidden(self.before_perceptron(x))))
        return found


class Transformer(nn.Module):
    """A small GPT with learned positions; the output layer does not share the embedding's weights."""

    def __init__(self, width: int = 64, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        nn.init.normal_(self.words.weight, std=0.02)
        self.positions = nn.Parameter(0.02 * torch.randn(WINDOW, width))
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """float32[b, w, V], of int64[b, w]."""
        found: Tensor = self.head(self.norm(self.blocks(self.words(tokens) + self.positions)))
        return found


def images(data: Path | None, samples: int) -> tuple[Examples, Examples]:
    """The first training images of MNIST, and the first TESTED test images."""
    dataset = load_dataset("mnist", data)

    def first(part: Images, count: int) -> Examples:
        pixels = torch.from_numpy(part.pixels[:count].astype(np.float32))
        return Examples(pixels / 127.5 - 1, torch.from_numpy(part.labels[:count].copy()))

    return first(dataset.train, samples), first(dataset.test, TESTED)


def _windows(data: Path | None, samples: int) -> tuple[Examples, Examples]:
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ImportError as error:
        raise missing_package(error) or error from None
    corpus = load_corpus("aesop", data)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False)
    tokenizer.train_from_iterator([corpus.train], trainer)

    def first(text: str, count: int) -> Examples:
        tokens = torch.tensor(tokenizer.encode(text).ids)
        count = min(count, (len(tokens) - 1) // WINDOW)
        places = WINDOW * torch.arange(count)[:, None] + torch.arange(WINDOW)
        return Examples(tokens[places], tokens[places + 1])

    return first(corpus.train, samples), first(corpus.test, TESTED)


def _sgd(lr: float) -> Callable[[Parameters], torch.optim.Optimizer]:
    return partial(torch.optim.SGD, lr=lr, momentum=0.9)


# "dattri" is the MNIST benchmark of dattri (Deng et al., 2024), which has 50 epochs. The others were chosen to train
# smoothly, and accurately for their size: large batches, moderate rates, smooth activations, a large eps of AdamW.
# A derivative predicts a retraining better then.
RECIPES = (
    Recipe(
        "dattri",
        partial(_perceptron, nn.ReLU, dropout=0.1),
        _sgd(0.01),
        "a perceptron 784-128-64-10 with ReLU and dropout 0.1; SGD with momentum 0.9, learning rate 0.01",
        samples=5000,
        batch=64,
        epochs=15,
        random=True,
        every_way=True,
    ),
    Recipe(
        "smooth",
        partial(_perceptron, nn.Tanh),
        _sgd(0.05),
        "a perceptron 784-128-64-10 with tanh; SGD with momentum 0.9, learning rate 0.05",
        samples=2000,
        batch=500,
        epochs=15,
        every_way=True,
    ),
    Recipe(
        "cnn",
        _convolutions,
        _sgd(0.02),
        "two strided convolutions (16 and 32 channels) with GELU and a linear layer; SGD with momentum 0.9, learning "
        "rate 0.02",
        samples=2000,
        batch=100,
        epochs=20,
    ),
    Recipe(
        "gpt",
        Transformer,
        partial(torch.optim.AdamW, lr=2e-3, eps=1e-4, weight_decay=0.01),
        f"a causal transformer of 2 blocks, width 64, 4 heads, GELU and {VOCABULARY} byte pairs; AdamW, learning rate "
        "0.002, eps 0.0001, weight decay 0.01",
        samples=1000,
        batch=50,
        epochs=5,
        text=True,
    ),
)
