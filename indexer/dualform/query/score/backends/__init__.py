"""What multiplies keys with queries. Any of them may be wrong in the last bits: the reported scores are canonical.

Shapes: b keys, n queries, d dimensions.

    int8          CPU, the default where the compiled loops are there and the processor multiplies bytes fast
    numpy         CPU, the default elsewhere
    torch         CPU
    faiss         CPU
    torch-cuda    the default where torch sees a GPU
    faiss-gpu     GPU
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.errors import MissingPackage, NotFound

if TYPE_CHECKING:
    from dualform.query.search.screen import Screen

Floats = NDArray[np.float32] | NDArray[np.float64]

NAMES = {
    "int8": ("cpu", "Int8Backend"),
    "numpy": ("cpu", "NumpyBackend"),
    "torch": ("torch", "TorchBackend"),
    "faiss": ("faiss", "FaissBackend"),
    "torch-cuda": ("torch", "cuda_backend"),
    "faiss-gpu": ("faiss", "gpu_backend"),
}
"""The module here and what makes it there; its libraries are loaded then."""
_DRIVER = Path("/proc/driver/nvidia/version")


class Backend(Protocol):
    """Scores float32[n, b], each within the bound of float32 sums in any order (see canonical.py)."""

    name: str

    @property
    def rounding(self) -> float:
        """Relative rounding of the factors before they are multiplied; 0.0 where float32 is taken as it is."""
        ...

    def scores(self, keys: NDArray[np.float32], queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """Every inner product of float32[b, d] and float32[n, d], as float32[n, b]."""
        ...


@runtime_checkable
class ScreenBackend(Protocol):
    """A backend that looks for the best rows in eight bits before it scores any."""

    @property
    def screen(self) -> Screen: ...


def score_float64(keys: NDArray[np.float32], queries: NDArray[np.float32]) -> NDArray[np.float64]:
    """float64[n, b]: for what float32 cannot hold. Its unit roundoff is bound.FLOAT64."""
    return queries.astype(np.float64) @ keys.astype(np.float64).T


def choose(name: str | None = None) -> Backend:
    """The backend of a name, or the one that fits this machine.

    Raises NotFound for a name that there is not, MissingPackage where its package or its GPU is missing.
    """
    if name is None:
        return _automatic()
    if name not in NAMES:
        raise NotFound(f"no backend {name!r}.", hint=f"Backends: {', '.join(NAMES)}.", field="backend")
    module, make = NAMES[name]
    backend: Backend = getattr(import_module(f"{__name__}.{module}"), make)()
    return backend


def described(backend: Backend) -> str:
    """A backend and the compiled loops beside it, or why there are none, for whoever asks what answers."""
    return f"backend {backend.name}, {kernels.described()}"


def _automatic() -> Backend:
    # Asking torch takes seconds; without a driver the answer is known.
    if _DRIVER.exists():
        try:
            return choose("torch-cuda")
        except MissingPackage:
            pass
    return choose("int8" if kernels.fast() else "numpy")
