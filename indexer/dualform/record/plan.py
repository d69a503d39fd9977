"""What a recorder was asked to record, and where to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from dualform.record.budget_plan import BudgetPlan
from dualform.record.owners import Owners
from dualform.record.resumption import Resumption
from dualform.record.sink import Sink
from dualform.record.taps import Tap
from dualform.record.training_shard import TrainingShard
from dualform.store.header import Header


@dataclass(frozen=True)
class Plan:
    """What is to be recorded, and where to."""

    model: nn.Module
    owners: Owners
    """The optimizers, and which parameters each of them updates."""
    path: Path
    taps: Sequence[Tap]
    skipped: dict[str, str]
    """Layers that are not recorded, and why."""
    sink: Callable[[Header], Sink]
    spaces: Mapping[str, str] = field(default_factory=dict)
    """Names or patterns of layers -> space."""
    routed: Sequence[str] = ()
    """Names or patterns of layers whose rows the model chooses."""
    keys: bool = True
    label_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    resumed: Resumption | None = None
    """What the training goes on from; None for one that begins."""
    ranks: TrainingShard | None = None
    """This process among those of a training that several record together."""
    compiled: Sequence[str] = ()
    """Parts of the model, by name, whose calls torch.compile was asked to compile."""
    budget: BudgetPlan | None = None
    """What the memory may take on disk; None for whatever it needs."""
    sharded: bool = False
    """Whether each rank holds a part of the model alone."""
    keep_random: bool = False
    """Whether to store the states of the random number generators."""
