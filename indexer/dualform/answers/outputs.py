"""A layer's outputs, with all slots or under a filter. Shapes: n queries, d_out outputs of the layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from dualform.answers.columns import SHOWN, Columns, Html, as_html, column_of, escaped
from dualform.answers.html import output_names, query_labels
from dualform.answers.scan import Scan
from dualform.answers.status import Status
from dualform.answers.table import Shown, counted, slots_told


@dataclass(frozen=True, eq=False, repr=False)
class Outputs(Shown, NDArrayOperatorsMixin):
    """The outputs of a layer, float32[n, d_out]. NumPy functions, operators, indexing and len() work on `values`."""

    values: NDArray[np.float32]
    """float32[n, d_out]."""
    space: str
    """The slot space of the layer."""
    status: Status
    """The status of the layer as of the step. It covers the whole sum; an ablation lacks a separate error bound."""
    unrecorded_change: float = 0.0
    """The size of changes that were not recorded or were deleted, relative to how far the weights moved. They stay in
    the output under every ablation. 0.0 without such changes; NaN if the training did not end."""
    scan: Scan = field(default_factory=Scan)
    kernel: str = "linear"
    """ "linear" or "softmax"."""
    temperature: float | None = None
    """The temperature of "softmax"; None for "linear"."""
    initial: bool = True
    """Whether W_0 and the whole bias are included."""
    effective_slots: NDArray[np.float64] | None = None
    """float64[n], 1 / sum_t p_t^2: the effective number of slots of the softmax; 0.0 if the ablation keeps none. None
    for "linear"."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False and dtype is not None and np.dtype(dtype) != self.values.dtype:
            raise ValueError(f"outputs are {self.values.dtype}, and {np.dtype(dtype)} would take a copy.")
        array: NDArray[Any] = self.values.astype(self.values.dtype if dtype is None else dtype, copy=bool(copy))
        return array

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if any(isinstance(out, Outputs) for out in options.get("out", ())):
            return NotImplemented  # an answer is not to be written into
        arrays = [one.values if isinstance(one, Outputs) else one for one in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, d_out)."""
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """float32."""
        return self.values.dtype

    @property
    def ndim(self) -> int:
        """2: queries and outputs."""
        return self.values.ndim

    @property
    def nbytes(self) -> int:
        """The size of the numbers in bytes."""
        return self.values.nbytes + (0 if self.effective_slots is None else self.effective_slots.nbytes)

    def part(self, start: int, stop: int) -> Outputs:
        """The result for the queries from start to stop. `scan` stays that of the whole."""
        effective = None if self.effective_slots is None else self.effective_slots[start:stop]
        return replace(self, values=self.values[start:stop], effective_slots=effective)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        return iter(self.values)

    def shown(self, most: int) -> tuple[Columns, int]:
        """One row for each query: the largest output, and the first outputs."""
        values = self.values[:most]
        found: dict[str, NDArray[Any]] = {"query": np.arange(len(values)), "largest": values.argmax(axis=1)}
        if self.effective_slots is not None:
            found["effective slots"] = self.effective_slots[:most]
        found |= {f"output {own}": values[:, own] for own in range(min(values.shape[1], _SHOWN_OUTPUTS))}
        return Columns(found, self.scan, self.space), len(self)

    def _html(self, memory: Any, question: Any) -> str:
        """With names of labels, the largest output of each query in bold and the second in italics."""
        values = self.values[: SHOWN + 2]
        name, width = output_names(memory, question), values.shape[1]
        order = np.argsort(-values, axis=1, kind="stable")
        found: dict[str, NDArray[Any]] = {"query": np.arange(len(values))}
        if (labels := query_labels(memory, question, self.space)) is not None:
            found["label"] = column_of([name(own) if own >= 0 else None for own in labels[: len(values)].tolist()])
        for place, column in enumerate(("largest", "second")[:width]):
            found[column] = column_of([name(own) for own in order[:, place].tolist()])
        if self.effective_slots is not None:
            found["effective slots"] = self.effective_slots[: len(values)]
        for output in range(width if width <= _MOST_OUTPUTS else _SHOWN_OUTPUTS):
            cells = [Html(escaped(f"{own:.4g}")) for own in values[:, output].tolist()]
            for place, tag in enumerate("bi"[:width]):
                cells = [
                    Html(f"<{tag}>{cell}</{tag}>") if own == output else cell
                    for cell, own in zip(cells, order[:, place].tolist(), strict=True)
                ]
            found[f"output {name(output)}"] = column_of(cells)
        title = self._title("" if width <= _MOST_OUTPUTS else _FIRST)
        return as_html(Columns(found), len(self), f"{title}; bold is the largest, italics the second")

    def title(self) -> str:
        return self._title(_FIRST if self.values.shape[1] > _SHOWN_OUTPUTS else "")

    def _title(self, shown: str) -> str:
        of = slots_told(self.scan, self.space)
        weighed = "" if self.kernel == "linear" else f", weighed by a {self.kernel} at temperature {self.temperature:g}"
        initial = "" if self.initial else ", without W_0 and bias"
        sizes = f"{counted(len(self), 'query')}, {counted(self.values.shape[1], 'output')}{shown}"
        return f"Outputs: {sizes}{f', of {of}' if of else ''}{weighed}{initial}; the layer's record is {self.status}"


_SHOWN_OUTPUTS, _MOST_OUTPUTS = 8, 12
"""The number of outputs that are printed; and the most that a notebook shows."""
_FIRST = f" (the first {_SHOWN_OUTPUTS} are shown)"
