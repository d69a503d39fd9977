"""Scores by torch, on the CPU or on a GPU. On a GPU: written to its documentation, not measured."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.errors import MissingPackage
from dualform.query.score.backends.device_copies import DeviceCopies
from dualform.query.search.codes_cache import CodesCache
from dualform.query.search.device_screen import DeviceScreen, undisturbed
from dualform.rules.rounding import product_rounding
from dualform.store.forks import forked


class TorchBackend:
    name = "torch"
    device = "cpu"
    library = "mkldnn"
    """Whose setting in torch.backends says how it multiplies."""

    def __init__(self) -> None:
        self._torch = _torch()

    @property
    def rounding(self) -> float:
        """As torch is set at this moment: a training in the same process may have asked for less precision."""
        return product_rounding(self._torch, self.library)

    def scores(self, keys: NDArray[np.float32], queries: NDArray[np.float32]) -> NDArray[np.float32]:
        if forked():  # OpenMP would wait for threads of the parent's, as torch's own loaders know
            self._torch.set_num_threads(1)
        with undisturbed(self._torch, self.device):
            scores: NDArray[np.float32] = self._product(keys, queries).cpu().numpy()
        return scores

    def _product(self, keys: NDArray[np.float32], queries: NDArray[np.float32]) -> Any:
        return self._upload(queries) @ self._keys(keys).T

    def _keys(self, keys: NDArray[np.float32]) -> Any:
        return self._upload(keys)

    def _upload(self, rows: NDArray[np.float32]) -> Any:
        with warnings.catch_warnings():
            # Keys are read-only arrays; torch warns that it cannot know that nobody writes to them.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
            return self._torch.from_numpy(np.ascontiguousarray(rows)).to(self.device)


class TorchDeviceBackend(TorchBackend):
    """Keys stay on the device while its memory has room for them; what does not fit is copied for each question.

    The best rows are looked for in eight bits first, as on the processor. `room()` is how many bytes of the device are
    free.
    """

    def __init__(self, device: str, room: Callable[[], int]) -> None:
        super().__init__()
        self.device = device
        self._held = DeviceCopies(self._upload, room)
        # Codes are made by the compiled loops.
        if kernels.library() is not None:
            self.screen = DeviceScreen(self._torch, device, room, CodesCache())

    def _keys(self, keys: NDArray[np.float32]) -> Any:
        return self._held.get(keys)

    def top(
        self, keys: NDArray[np.float32], queries: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """As TopKBackend: only the best scores leave the device."""
        with undisturbed(self._torch, self.device):
            scores, rows = self._product(keys, queries).topk(k, dim=1)
            return scores.cpu().numpy(), rows.cpu().numpy()


class TorchCudaBackend(TorchDeviceBackend):
    name = "torch-cuda"
    library = "cuda"

    def __init__(self) -> None:
        cuda = _torch().cuda
        if not cuda.is_available():
            raise MissingPackage(
                "torch sees no GPU.",
                hint='Use backend="int8" or "numpy", or install a CUDA build of torch.',
                field="backend",
            )
        super().__init__("cuda", lambda: int(cuda.mem_get_info()[0]))


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingPackage(
            "torch is not installed.", hint="pip install 'dualform[record]' brings it.", field="backend"
        ) from None
    return torch
