"""ResNet-18 for images of 28 x 28 pixels: the stem is a 3 x 3 convolution of stride 2, without a pool behind it.

Source: He et al. 2016, "Deep Residual Learning for Image Recognition".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

BLOCKS, STAGES = 2, 4


class ResidualBlock(nn.Module):
    """Two convolutions, around which the input goes past."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or width_in != width:
            self.shortcut = nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(inner)) + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width)
        widths = [width * 2**stage for stage in range(STAGES)]
        before = width
        for stage, own in enumerate(widths, start=1):
            blocks = [ResidualBlock(before, own, 1 if stage == 1 else 2)]
            blocks += [ResidualBlock(own, own, 1) for _ in range(BLOCKS - 1)]
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))
            before = own
        self.fc = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """float32[n, 1, 28, 28] to float32[n, classes]."""
        x = torch.relu(self.bn1(self.conv1(x)))
        for stage in range(1, STAGES + 1):
            x = self.get_submodule(f"layer{stage}")(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def build_network(width: int, classes: int, seed: int) -> ResNet18:
    """In PyTorch's default initialisation, drawn from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ResNet18(width, classes)
