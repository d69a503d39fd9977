"""Networks of which a slot is a sample."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.utils.checkpoint import checkpoint

from .network import STEPS, Batch, Network, plain_sgd

B, D, CLASSES = 12, 10, 4


def labelled(*shape: int) -> Iterator[Batch]:
    """Batches of inputs [B, *shape] with labels."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(60, *(shape or (D,)), generator=generator)
    labels = torch.randint(0, CLASSES, (60,), generator=generator)
    for step in range(STEPS):
        index = torch.randint(0, 60, (B,), generator=generator)
        columns = {"dataset": "a" if step < STEPS // 2 else "b", "label": labels[index], "sample": index}
        yield Batch((inputs[index], labels[index]), columns)


def classify(model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model(inputs[0]), inputs[1])


def mlp(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(D, 16), *(between or (nn.ReLU(),)), nn.Linear(16, CLASSES))


Network("mlp", mlp, labelled, classify)
Network("plain-sgd", mlp, labelled, classify, plain_sgd)
Network(
    "nesterov",
    mlp,
    labelled,
    classify,
    lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.8, nesterov=True, weight_decay=1e-2),
)
Network(
    "two-groups",
    mlp,
    labelled,
    classify,
    lambda m: torch.optim.SGD(
        [{"params": m[0].parameters(), "lr": 0.2}, {"params": m[2].parameters(), "momentum": 0.5}], lr=0.05
    ),
)
Network(
    "without-biases",
    lambda: nn.Sequential(nn.Linear(D, 8, bias=False), nn.Tanh(), nn.Linear(8, CLASSES, bias=False)),
    labelled,
    classify,
)
Network("batch-norm", lambda: mlp(nn.BatchNorm1d(16), nn.ReLU()), labelled, classify)
Network("dropout", lambda: mlp(nn.ReLU(), nn.Dropout(0.3)), labelled, classify)
Network("in-place-relu", lambda: mlp(nn.ReLU(inplace=True)), labelled, classify)
Network("float64", lambda: mlp().double(), labelled, lambda m, x: classify(m, (x[0].double(), x[1])))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(D, 16), nn.Linear(16, CLASSES)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.head(x)


Network("residual", Residual, labelled, classify)


class StochasticDepth(Residual):
    """Leaves its blocks out in turns: a layer is not called in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = 0

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number, block in enumerate(self.blocks):
            if (self.turn + number) % 3:
                x = x + torch.relu(block(x))
        self.turn += 1
        return self.head(x)


Network("stochastic-depth", StochasticDepth, labelled, classify)


class Shared(nn.Module):
    """One layer called three times, as in ALBERT or a deep equilibrium network."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.again, self.head = nn.Linear(D, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(3):
            x = torch.tanh(self.again(x))
        return self.head(x)


Network("shared-layer", Shared, labelled, classify)


class Bags(nn.Module):
    """A bag of words, and the mean of another embedding of them without the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.sums, self.means = nn.EmbeddingBag(9, 6, mode="sum"), nn.EmbeddingBag(9, 6, mode="mean", padding_idx=0)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        words = (x * 3).long().abs() % 9
        return self.head(torch.relu(self.sums(words)) * self.means(words))


Network("embedding-bag", Bags, labelled, classify)


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(D, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        return (self.tower(x) * self.tower(x.flip(1))).sum(1)


Network("siamese", Siamese, labelled, lambda m, x: binary_cross_entropy_with_logits(m(x[0]), (x[1] < 2).float()))


class Tied(nn.Module):
    """An autoencoder of two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


Network("tied-weights", Tied, labelled, lambda m, x: mse_loss(m(x[0]), x[0]))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


Network("cnn-head", Convolutions, lambda: labelled(1, 8, 8), classify)
Network(
    "cnn",
    lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(54, CLASSES),
    ),
    lambda: labelled(1, 8, 8),
    classify,
)  # fmt: skip
Network(
    "cnn-3d",
    lambda: nn.Sequential(
        nn.Conv3d(2, 3, (2, 1, 3), padding=(1, 0, 1)),
        nn.Tanh(),
        nn.Conv3d(3, 2, (1, 2, 3), padding="same", dilation=(1, 1, 2)),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(54, CLASSES),
    ),
    lambda: labelled(2, 2, 3, 3),
    classify,
)
Network(
    "padded-cnn",
    lambda: nn.Sequential(
        nn.Conv2d(1, 4, (4, 3), padding="same", bias=False), nn.ReLU(),
        nn.Conv2d(4, 3, (2, 3), stride=(2, 1), padding=(1, 2), padding_mode="circular"), nn.ReLU(),
        nn.Conv2d(3, 2, 3, padding=1, padding_mode="reflect"), nn.ReLU(), nn.Flatten(), nn.Linear(100, CLASSES),
    ),
    lambda: labelled(1, 8, 8),
    classify,
)  # fmt: skip
Network(
    "depthwise-cnn",
    lambda: nn.Sequential(
        nn.Conv2d(2, 6, 3, groups=2, padding=1), nn.ReLU(), nn.Conv2d(6, 12, 3, stride=2, groups=6), nn.ReLU(),
        nn.Conv2d(12, 5, 1), nn.ReLU(), nn.Flatten(), nn.Linear(45, CLASSES),
    ),
    lambda: labelled(2, 8, 8),
    classify,
)  # fmt: skip
Network(
    "autoencoder",
    lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(), nn.ConvTranspose2d(3, 2, 4, stride=2, padding=1, output_padding=1),
        nn.Tanh(), nn.ConvTranspose2d(2, 1, 2, dilation=2, bias=False),
    ),
    lambda: labelled(1, 6, 6),
    lambda m, x: mse_loss(m(x[0])[..., :6, :6], x[0]),
)  # fmt: skip


class Checkpointed(Residual):
    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


Network("checkpointed", Checkpointed, labelled, classify)
