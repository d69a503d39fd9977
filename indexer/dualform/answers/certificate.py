"""How well the record rebuilds the final weights of the recorded layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dualform.answers.grade import Grade
from dualform.answers.scan import Scan


@dataclass(frozen=True)
class Certificate:
    """How well the record rebuilds one layer's weights of the end, and the layer's grade."""

    relative_error: float | None
    """||W_T - rebuilt|| / ||W_T - W_0||, Frobenius norms, bias included: 0.0 is exact, 1.0 as far off as W_0.

    None where the layer cannot be rebuilt at all (no values, or an optimizer without an update rule), and where its
    weights of half precision moved less than their rounding, so that there is no way to hold anything against.
    """
    grade: Grade
    rounding_share: float = 0.0
    """Share of the distance ||W_T - W_0|| that lies in biases whose gradient was rounding alone, as attention's keys
    have: no slot has a part in it, and no mask moves it. 0.0 under rules that do not scale gradients."""

    @property
    def exact(self) -> bool:
        return self.grade.exact

    @property
    def reason(self) -> str:
        """Why the record is not exact; empty where it is."""
        return self.grade.reason


@dataclass(frozen=True, eq=False)
class Certificates(Mapping[str, Certificate]):
    """The certificate of each recorded layer, by its name, in the order of the layers: what `verify` answers."""

    certificates: Mapping[str, Certificate]
    scan: Scan = field(default_factory=Scan)

    def __getitem__(self, layer: str) -> Certificate:
        return self.certificates[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.certificates)

    def __len__(self) -> int:
        return len(self.certificates)
