"""What the updates of all optimizers of a training have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from torch import nn

from dualform.record.placement import Placement
from dualform.record.training_shard import TrainingShard
from dualform.store.weights import Buffers


@dataclass(frozen=True)
class Training:
    """What updates start from, and who takes part in them."""

    model: nn.Module
    """Where another tensor may take a parameter's place."""
    initial: Mapping[str, NDArray[Any]]
    """Its state dict before the first step."""
    buffers: Buffers
    """What the optimizers kept by then."""
    halved: Mapping[str, str]
    """As Header says."""
    ranks: TrainingShard | None
    """This process among those whose gradients are averaged."""
    placement: Placement
    """The spaces that they must agree on."""
    told: set[tuple[str, str]] = field(default_factory=set)
    """What of which layer was told of already, whichever optimizer it was found with."""
