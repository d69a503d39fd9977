"""The shape of one call of a space, and how its rows come to lie as slots.

Shapes: B rows, `L...` token dimensions, n slots of an extent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

from dualform.errors import BadInput
from dualform.record.lineage import Place
from dualform.record.space import RecordedSpace


@dataclass(frozen=True, eq=False)
class Shape:
    """One call of a space: its slots lie row after row."""

    space: RecordedSpace
    call: int
    leading: tuple[int, ...]
    """(B,), or (B, L...) where the space has tokens."""
    moved: int
    """The axis that the batch had in the training."""
    untold: bool = False
    """Nothing tells which axis is the batch, so that no entry can be given to its rows."""
    order: Tensor | None = None
    """int64[n]: which of the rows as they came is each slot; None if `moved` tells."""
    place: Place | None = None
    """Where the slots stood in the batch, of a call whose rows are not the batch's or are not known: as they came."""

    @property
    def rows(self) -> int:
        return self.leading[0]

    @property
    def length(self) -> int | None:
        """Positions of a row, over all token dimensions; None where a slot is a row."""
        return prod(self.leading[1:]) if self.space.tokens else None

    @property
    def slots(self) -> int:
        return prod(self.leading)

    def __str__(self) -> str:
        return str(list(self.leading))


def turned(leading: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """`leading`, whose batch is `axis`, with the batch first."""
    return (leading[1], leading[0], *leading[2:]) if axis and len(leading) > 1 else leading


def square(leading: Sequence[int]) -> bool:
    """Whether the two axes that may be the batch are equally long, and more than one entry."""
    return len(leading) > 1 and leading[0] == leading[1] > 1


def oblong(leading: Sequence[int]) -> bool:
    """Whether a batch shows its axes: neither square nor one entry long."""
    return len(leading) > 1 and leading[0] != leading[1] and min(leading[:2]) > 1


def misfit(name: str, entry: tuple[int, ...], shapes: Sequence[Shape]) -> BadInput:
    """An entry that fits no call of the step."""
    seen = " and ".join(dict.fromkeys(f"{shape} ({shape.space.name})" for shape in shapes))
    several = max((shape.call for shape in shapes), default=0)
    hint = "Pass one value, one for each row [B], or one for each token [B, L]."
    if several:
        hint += " Put each micro-batch into its own recorder.step, of which only the last one updates."
    elif any(shape.space.tokens for shape in shapes):
        hint += " If the batch is the second axis of the layers' inputs, pass batch_dim=1."
    return BadInput(
        f"{name} has shape {list(entry)}, but the recorded layers saw batches of {seen}.", hint=hint, field=name
    )


def laid_out(tensor: Tensor, shape: Shape) -> Tensor:
    """[n, width] as it came, as slots lie: row after row."""
    if shape.order is not None:
        return tensor[shape.order]
    if not shape.moved or len(shape.leading) < 2:
        return tensor
    rows, length, *rest = shape.leading
    return tensor.view(length, rows, *rest, tensor.shape[-1]).transpose(0, 1).reshape(shape.slots, -1)
