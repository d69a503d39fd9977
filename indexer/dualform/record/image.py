"""What the watch sees of the parameters: numbers of which the update rule makes the same as of the whole.

Shapes: P numbers over all parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dualform.record.projection import Doubles


class Image(Protocol):
    """A linear map of every parameter, the same for weights, gradients and buffers."""

    @property
    def spans(self) -> Sequence[slice]:
        """Where each parameter's numbers stand among the P."""

    @property
    def norm_factors(self) -> Sequence[float]:
        """By parameter, what makes norms of its numbers estimates of Frobenius norms."""

    def weights(self, chosen: NDArray[np.bool_] | None = None) -> Doubles:
        """float64[P]: the live parameters; 0.0 where not `chosen`, NaN for those that are lost."""

    def project_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> Doubles:
        """float64[P]: of arrays under the parameters' names; 0.0 for those that are missing."""
