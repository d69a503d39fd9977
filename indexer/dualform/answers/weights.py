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
    """A torch tensor under each of the model's own names of parameters and buffers, in its shape and type:
    `load_state_dict` takes it as it is.

    The tensors share memory with `arrays`, and are made when the first is asked for; without torch, `arrays` has the
    same numbers.
    """

    arrays: Mapping[str, NDArray[Any]]
    """Every parameter and buffer: those of recorded layers in the order of the layers, then the others by name."""
    statuses: Mapping[str, Status]
    """By recorded layer: how exact its record is as of the step that was asked for. It is that of the whole sum,
    whatever a mask leaves."""
    unrecorded_change: Mapping[str, float]
    """By recorded layer: the size of what moved its weights outside the record, or was deleted, and stands in them
    like W_0, relative to the distance they moved; 0.0 where there is nothing of the kind, NaN where there is
    no end to tell how far they moved."""
    not_recorded: tuple[str, ...] = ()
    """Parameters and buffers of no recorded layer that were not kept step by step: they stand as at the end of the
    training, or as before its first step where it has not `ended`."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """By slot space: how many slots the mask left."""
    scan: Scan = field(default_factory=Scan)
    others: tuple[str, ...] = ()
    """Parameters and buffers of no recorded layer as they were at the step that was asked for. They carry no attention,
    and no mask moves them: they stand as all of training left them."""
    ended: bool = True
    """Whether the training came to its end: it may have been cut off, or still run."""

    @property
    def remark(self) -> str:
        """What is to be said of `not_recorded`, without a full stop; empty where there is nothing."""
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
        """A row a parameter or buffer: its name, shape and type."""
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
