"""What a memory says of its training as a whole: before the first batch, and after the last one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from dualform.store.layer import Layer
from dualform.store.mark import Mark
from dualform.store.others import Others
from dualform.store.sampling import Sampling
from dualform.store.stored_optimizer import StoredOptimizer
from dualform.store.tables import SETTINGS, ColumnTypes

Arrays: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Header:
    """What is known before the first batch."""

    path: Path
    """The memory's folder."""
    layers: Sequence[Layer]
    optimizer: str
    """The name of its class; of the first one where there are several."""
    rule: str
    """The update rule that it follows; "" where none is known."""
    reason: str
    """Why there is no rule; empty where there is one."""
    initial: Mapping[str, NDArray[Any]]
    """The model's state dict before the first step."""
    buffers: Mapping[str, Arrays] = field(default_factory=dict)
    """What the optimizer kept by then, by parameter and by its own name for it."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Layers that are not recorded, and why; those that no step has reached yet among them."""
    label_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By dataset, the names of labels 0, 1, …"""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Further names of recorded parameters in the state dict -> the name they are recorded under."""
    settings: ColumnTypes = field(default_factory=lambda: SETTINGS)
    """DuckDB types of the settings that the update rules name; others get columns when they are first seen."""
    others: Others | None = None
    """What is kept of parameters and buffers that no slot explains; None for nothing."""
    halved: Mapping[str, str] = field(default_factory=dict)
    """By parameter, "bfloat16" or "float16" where it is of that type and its updates are rounded as the rule rounds."""
    sampling: Sampling | None = None
    """How slots are sampled to hold a budget; None where all are kept."""
    further_optimizers: Sequence[StoredOptimizer] = ()
    """Those that update blocks beside the one named above."""

    @property
    def optimizers(self) -> Sequence[StoredOptimizer]:
        return [StoredOptimizer(self.optimizer, self.rule, self.reason), *self.further_optimizers]


@dataclass(frozen=True)
class Ending:
    """What is known once the training has ended."""

    finished: bool = True
    """Whether it came to its end."""
    final: Mapping[str, NDArray[Any]] | None = None
    """The model's state dict as the training left it."""
    buffers: Mapping[str, Arrays] = field(default_factory=dict)
    """What the optimizer keeps by then, of which checksums are kept."""
    skipped: Mapping[str, str] | None = None
    """The layers that were never recorded, and why; None where that is as it was."""
    mark: Mark | None = None
    """How the training stands, for it may be resumed."""
