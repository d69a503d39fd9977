"""Networks of layers that share a weight or work in groups of channels, as several tests train them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Tied(nn.Module):
    """Two layers of one weight, and one of its own."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Images(nn.Module):
    """A convolution of four channels in two groups, and a head."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(4, 6, 3, groups=2), nn.Linear(6, 3, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.conv(images).relu().mean((2, 3)))
