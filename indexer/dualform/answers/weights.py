"""The parameters of a whole network when only some slots speak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from dualform.answers.columns import Columns, column_of
from dualform.answers.scan import Scan
from dualform.answers.status import Status
from dualform.answers.table import Shown, counted
from dualform.extras import optional


@dataclass(frozen=True, eq=False, repr=False)
class Weights(Shown, Mapping[str, Any]):
    """The parameters and buffers of the network by name, as torch tensors. `load_state_dict` takes it directly.

    The tensors share memory with `arrays`, and are made when first read. Without torch, use `arrays`.
    """

    arrays: Mapping[str, NDArray[Any]]
    """Every parameter and buffer as an array: recorded layers first, then the others by name."""
    statuses: Mapping[str, Status]
    """The status of each recorded layer as of the step. It covers the whole sum; an ablation lacks a separate error
    bound."""
    unrecorded_change: Mapping[str, float]
    """By recorded layer, the size of changes that were not recorded or were deleted, relative to how far the weights
    moved. They stay in the weights under every ablation. 0.0 without such changes; NaN if the training did not end."""
    not_recorded: tuple[str, ...] = ()
    """Parameters and buffers outside the recorded layers that were not kept at each step. They have their values at the
    end of the training or, unless it `ended`, before its first step."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """The number of slots that the ablation keeps, by slot space."""
    scan: Scan = field(default_factory=Scan)
    others: tuple[str, ...] = ()
    """Parameters and buffers outside the recorded layers, with their values at the step. No ablation changes them."""
    ended: bool = True
    """Whether the training ended; otherwise it was cut off or is still running."""

    @property
    def remark(self) -> str:
        """A sentence about `not_recorded`, without a full stop; empty if all parameters were recorded."""
        if not self.not_recorded:
            return ""
        moment = "at the end of the training" if self.ended else "before its first step, for there is no end"
        return f"not recorded, so they stand as {moment}: {', '.join(self.not_recorded)}"

    @cached_property
    def _tensors(self) -> dict[str, Any]:
        torch = optional("torch")
        return {name: torch.from_numpy(array) for name, array in self.arrays.items()}

    def __getitem__(self, name: str) -> Any:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __contains__(self, name: object) -> bool:
        return name in self.arrays

    def shown(self, most: int) -> tuple[Columns, int]:
        """One row for each parameter or buffer: name, shape and type."""
        arrays = [*self.arrays.items()][:most]
        return Columns(
            {
                "name": column_of([name for name, _ in arrays]),
                "shape": column_of([" x ".join(map(str, own.shape)) or "scalar" for _, own in arrays]),
                "type": column_of([str(own.dtype) for _, own in arrays]),
            },
            self.scan,
        ), len(self)

    def title(self) -> str:
        off = {layer: str(status) for layer, status in self.statuses.items() if not status.exact}
        exact = "every layer's record is exact" if not off else f"{counted(len(off), 'layer')} not exact (.statuses)"
        kept = ", ".join(f"{count:,} {space}" for space, count in self.kept.items())
        parts = [f"Weights: {counted(len(self), 'tensor')}", exact, f"slots that speak: {kept}" if kept else ""]
        if self.not_recorded:
            parts.append(f"{counted(len(self.not_recorded), 'tensor')} not recorded (.remark)")
        return "; ".join(part for part in parts if part)
