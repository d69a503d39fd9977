"""Which rows of a batch, or tokens of it, a network chose for a call of a routed layer, where the choice was seen.

Shapes: n slots of the call, B rows of the batch, L tokens of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dualform.record.shape import Shape


@dataclass(frozen=True, eq=False)
class ChosenRows:
    """Numbers among `count` rows, which are those of the batch or, row after row, its tokens."""

    numbers: Tensor
    """int64[n]"""
    count: int

    def places(self, shapes: Iterable[Shape], rows: int | None) -> dict[str, NDArray[np.int64]]:
        """`row` and, of tokens, `position`, int64[n] each; empty where it is not beyond doubt what was chosen from.

        `shapes`: of the step's calls; `rows`: B, where entries have rows.
        """
        same = [shape for shape in shapes if not shape.space.routed and shape.slots == self.count]
        found = {(shape.leading[0], shape.length) for shape in same}
        if not found and rows == self.count:
            found = {(rows, None)}
        if len(found) != 1 or any(shape.untold or shape.moved for shape in same):
            return {}
        ((_, length),) = found
        numbers = self.numbers.cpu().numpy().astype(np.int64)
        if length is None:
            return {"row": numbers}
        return {"row": numbers // length, "position": numbers % length}


def chosen_by(function: str, args: tuple[object, ...]) -> ChosenRows | None:
    """What a call of a torch function chose of a matrix's rows; None where it is no such choice."""
    source, *rest = args or (None,)
    if not isinstance(source, Tensor) or source.dim() != 2 or not rest:
        return None
    if function == "index_select":
        index = rest[-1] if rest[0] == 0 else None
    elif function == "__getitem__":
        parts = [part for part in (rest[0] if isinstance(rest[0], tuple) else rest) if part is not None]
        index = parts[0] if len(parts) == 1 or (len(parts) == 2 and parts[1] == slice(None)) else None
    else:
        index = None
    if not isinstance(index, Tensor) or index.dim() != 1 or index.is_floating_point():
        return None
    numbers = index.detach().nonzero().flatten() if index.element_size() == 1 else index.detach().long().clone()
    return ChosenRows(numbers.where(numbers >= 0, numbers + len(source)), len(source))
