"""How well the record rebuilds the final weights of the recorded layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from dualform.answers.columns import Columns, column_of
from dualform.answers.scan import Scan
from dualform.answers.status import Status
from dualform.answers.table import Table, counted


@dataclass(frozen=True, repr=False)
class Reconstruction(Table):
    """The reconstruction error of one layer at the end of the training, and its status."""

    reconstruction_error: float | None
    """||W_T - rebuilt|| / ||W_T - W_0|| in Frobenius norms, bias included. 0.0 is exact; 1.0 is as wrong as W_0.

    None if the layer cannot be rebuilt, or if half-precision weights moved less than their rounding.
    """
    status: Status
    rounding_share: float = 0.0
    """The share of ||W_T - W_0|| in biases whose gradient was only rounding, such as the key biases of attention. It
    belongs to no slot, and an ablation does not move it. 0.0 for optimizers that do not scale gradients."""

    @property
    def exact(self) -> bool:
        """Whether the record is exact."""
        return self.status.exact

    @property
    def reason(self) -> str:
        """Why the record is not exact, or what limits an exact one; otherwise empty."""
        return self.status.reason

    @property
    def rows(self) -> int:
        return 1

    def table(self, most: int | None = None) -> Columns:
        """One row: status, reconstruction error and reason."""
        return Columns(_rows([self][:most]))

    def title(self) -> str:
        return f"Reconstruction error; {_MEANING}"


@dataclass(frozen=True, eq=False, repr=False)
class Reconstructions(Table, Mapping[str, Reconstruction]):
    """The reconstruction error of each recorded layer, by name. `verify` returns it."""

    reconstructions: Mapping[str, Reconstruction]
    scan: Scan = field(default_factory=Scan)

    def __getitem__(self, layer: str) -> Reconstruction:
        return self.reconstructions[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.reconstructions)

    def __len__(self) -> int:
        return len(self.reconstructions)

    @property
    def rows(self) -> int:
        return len(self)

    def table(self, most: int | None = None) -> Columns:
        """One row for each layer: layer, status, reconstruction error and reason."""
        shown = [*self.reconstructions.items()][:most]
        layers = column_of([name for name, _ in shown])
        return Columns({"layer": layers, **_rows([own for _, own in shown])}, self.scan)

    def title(self) -> str:
        exact = sum(own.exact for own in self.reconstructions.values())
        count = "all exact" if exact == len(self) else f"{exact:,} of them exact"
        return f"Reconstruction errors: {counted(len(self), 'layer')}, {count}; {_MEANING}"


_MEANING = "reconstruction_error is ||W_T - rebuilt|| / ||W_T - W_0||"


def _rows(reconstructions: Sequence[Reconstruction]) -> dict[str, NDArray[Any]]:
    return {
        "status": column_of([str(own.status) for own in reconstructions]),
        "reconstruction_error": column_of([own.reconstruction_error for own in reconstructions]),
        "reason": column_of([own.reason for own in reconstructions]),
    }
