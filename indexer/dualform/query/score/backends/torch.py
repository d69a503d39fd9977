"""Scores by torch, on the CPU or on a GPU: key blocks kept on the device, and the screen there.

The screen on another device, as a GPU: the same codes and bounds as screen.py, and torch's product of bytes.

Shapes: n queries, R stored rows, m rows of a source with its padding, d dimensions with theirs.

Products of codes are sums of integers, exact in any order, so what is left out is what the bounds prove, whatever
multiplies. On a GPU: written to torch's documentation, not measured; the tests run it on CPU tensors.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.errors import MissingPackage
from dualform.query.search.codes import CodesCache, quantise_queries
from dualform.query.search.screen import Candidates, Request
from dualform.query.view import Check
from dualform.rules.rounding import product_rounding
from dualform.store.locks import forked
from dualform.store.rows import Keys
from dualform.store.sources.key_format import KeySource

Place: TypeAlias = tuple[int, int, tuple[int, ...]]
_SPARE = 4
"""A copy is kept where the device then still has so many times its size free: scores need room, too."""


class DeviceCopies:
    """`upload` copies a block, `room` says how many bytes of the device are free."""

    def __init__(self, upload: Callable[[NDArray[np.float32]], Any], room: Callable[[], int]) -> None:
        self._upload, self._room = upload, room
        self._held: dict[Place, Any] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, block: NDArray[np.float32]) -> Any:
        """The copy of a block, kept where there is room. Blocks of stored keys are never written to."""
        owner = _owner(block)
        place = (id(owner), block.ctypes.data, block.shape)
        if (held := self._held.get(place)) is not None:
            return held
        copy = self._upload(block)
        with self._lock:
            if place not in self._held and self._room() >= _SPARE * block.nbytes:
                self._held[place] = copy
                # Another array may stand at this address once this one is gone.
                weakref.finalize(owner, self._forget, place)
        return copy

    def _forget(self, place: Place) -> None:
        # Without the lock: a block may be let go at any moment, by a thread that holds it, or in a fork.
        self._held.pop(place, None)


def _owner(block: NDArray[Any]) -> NDArray[Any]:
    """The array whose memory a view shows."""
    while isinstance(block.base, np.ndarray):
        block = block.base
    return block


_MOST_GROUPS = 32
"""Each takes a selection of its own."""
_MIDDLE = 128
"""Codes of keys go from 0 to 255; a product of bytes takes them from -128 to 127."""
_FEWEST = 32
"""Queries of a product, which torch wants to be more than 16."""
_FACTOR_SLACK, _FACTOR_TINY, _PRODUCT_TINY = 2.0**-20, 2.0**-100, 2.0**-120
"""What float32 may have rounded of a row's factors and of a product with them, as in kernels/screen.c."""
_AT_ONCE = 1 << 24
"""Scores, of all queries and some rows."""


@contextmanager
def undisturbed(torch: Any, device: str) -> Iterator[None]:
    """No autograd, and none of the casts of an autocast around the question."""
    with torch.inference_mode(), torch.autocast(torch.device(device).type, enabled=False):
        yield


class DeviceScreen:
    """A Screen (screen.py), safe to use from several threads. Codes are made, and read from beside the keys, by the
    processor. `room` says how many bytes of the device are free: copies are kept there while they are enough.
    """

    def __init__(self, torch: Any, device: str, room: Callable[[], int], codes: CodesCache) -> None:
        self._torch, self._device, self._room, self.codes = torch, device, room, codes
        # By what a source's rows are: the object that says so may be another at each question.
        self._held: dict[Hashable, tuple[Any, Any]] = {}
        self._lock = threading.Lock()

    def clear(self) -> None:
        with self._lock:
            self._held.clear()
        self.codes.clear()

    def candidates(
        self,
        keys: Keys,
        queries: NDArray[np.float32],
        request: Request,
        check: Check,
        norms: NDArray[np.float64] | None = None,
    ) -> Candidates:
        n, torch = len(queries), self._torch
        if request.groups > _MOST_GROUPS:
            return Candidates(np.empty(0, np.int64), np.empty(0, np.int64), np.ones(n, bool))
        with undisturbed(torch, self._device):
            coded, size = self._coded(queries), max(8, _AT_ONCE // n // 8 * 8)
            weighs = request.factors
            factors = [] if weighs is None else [weighs.most, weighs.least, weighs.spread]
            factors = [self._upload(own) for own in factors if own is not None]
            floors = torch.full((n, request.groups), -np.inf, dtype=torch.float32, device=self._device)
            best = [floors[:, :0]] * request.groups
            found = []
            for source in keys.sources if request.sources is None else request.sources:
                check()
                codes, numbers = self._of(source, norms)
                group = np.full(len(codes), -1, np.int64)
                rows = slice(source.first_row, source.first_row + source.rows)
                group[: source.rows] = 0 if request.group is None else request.group[rows]
                groups = self._upload(group)
                for start in range(0, len(group), size):
                    part, first = slice(start, start + size), source.first_row + start
                    score, error = self._bounds(coded, codes[part], numbers[:, part], request.absolute)
                    if factors:
                        score, error = self._weighed(score, error, factors, first)
                    self._raise(floors, best, score - error, groups[part], request.k)
                    high, own = score + error, groups[part]
                    reached = _reach(high, floors[:, own.clamp(min=0)]) & (own >= 0)
                    query, row = reached.nonzero(as_tuple=True)
                    found.append((query, row + first, own[row], high[query, row]))
            # What reaches the floors over all sources.
            query, row, own, high = (torch.cat(parts) for parts in zip(*found, strict=True))
            kept = _reach(high, floors[query, own])
            query, row = query[kept].cpu().numpy(), row[kept].cpu().numpy()
        crowded = np.bincount(query, minlength=n) > request.capacity
        order = np.argsort(query, kind="stable")
        order = order[~crowded[query[order]]]
        return Candidates(query[order], row[order], crowded)

    def _coded(self, queries: NDArray[np.float32]) -> tuple[Any, Any]:
        """int8[more than n, d] and float32[6, n], as in QueryCodes: a query a row."""
        coded = quantise_queries(queries)
        tiles, words, tile, four = coded.codes.shape
        flat = coded.codes.transpose(0, 2, 1, 3).reshape(tiles * tile, words * four)
        padded = np.zeros((max(_FEWEST, -(-len(queries) // 8) * 8), -(-flat.shape[1] // 8) * 8), np.int8)
        padded[: len(queries), : flat.shape[1]] = flat[: len(queries)]
        return self._upload(padded), self._upload(coded.numbers)

    def _of(self, source: KeySource, norms: NDArray[np.float64] | None) -> tuple[Any, Any]:
        """int8[m, d], less _MIDDLE, and float32[4, m], as in Codes."""
        with self._lock:
            held = self._held.get(source.identity)
        if held is not None:
            return held
        own = slice(source.first_row, source.first_row + source.rows)
        codes = self.codes.get(source, None if norms is None else norms[own])
        groups, words, rows, four = codes.codes.shape
        matrix = codes.codes.transpose(0, 2, 1, 3).reshape(groups * rows, words * four)
        padded = np.full((len(matrix), -(-matrix.shape[1] // 8) * 8), _MIDDLE, np.uint8)
        padded[:, : matrix.shape[1]] = matrix
        made = self._upload((padded ^ _MIDDLE).view(np.int8)), self._upload(codes.numbers)
        with self._lock:
            if self._room() >= _SPARE * padded.nbytes:
                self._held[source.identity] = made
        return made

    def _upload(self, array: NDArray[Any]) -> Any:
        return self._torch.from_numpy(np.array(array, order="C")).to(self._device)

    def _bounds(self, coded: tuple[Any, Any], codes: Any, numbers: Any, absolute: bool) -> tuple[Any, Any]:
        """float32[n, m], twice: the scores of some rows, and how far off they may be."""
        queries, of_queries = coded
        scale, low, residual, length = numbers[:, None, :]
        own, _, total, norm, left, slack = of_queries[:, :, None]
        # On a processor without VNNI `_int_mm` adds pairs up in 16 bits, which overflow.
        products = self._torch._int_mm(queries, codes.T) if queries.is_cuda else queries.int() @ codes.T.int()
        shift = _MIDDLE * queries.sum(dim=1, dtype=self._torch.int32)
        score = (products + shift[:, None])[: len(own)].float() * (scale * own) + low * total
        error = residual * norm + length * left + low.abs() * slack
        return (score.abs() if absolute else score), error

    def _weighed(self, score: Any, error: Any, factors: list[Any], first: int) -> tuple[Any, Any]:
        """Of rows from `first` on, with factors as RowFactors has them, float32[n or 1, R] each."""
        width = score.shape[1]
        own = [part[:, first : first + width] for part in factors]  # none of the rows that pad the last ones
        most, least, *spread = (self._torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in own)
        size = self._torch.maximum(most.abs(), least.abs())
        off = size * _FACTOR_SLACK + _FACTOR_TINY + (spread[0] if spread else 0.0)
        error = error * size + (score.abs() + error) * off + _PRODUCT_TINY
        return self._torch.maximum(score * most, score * least), error

    def _raise(self, floors: Any, best: list[Any], low: Any, group: Any, k: int) -> None:
        """Raise float32[n, groups] floors by the lower bounds float32[n, m] of some rows.

        `best`: of each group float32[n, up to k], the greatest lower bounds so far.
        """
        low = low.nan_to_num(nan=-np.inf, neginf=-np.inf, posinf=np.inf)
        for g in range(len(best)):
            together = self._torch.cat([best[g], low[:, group == g]], dim=1)
            best[g] = together.topk(min(k, together.shape[1]), dim=1).values
            if best[g].shape[1] == k:
                floors[:, g] = best[g][:, -1]


def _reach(high: Any, floors: Any) -> Any:
    """What is not a number reaches, too, so that it is scored exactly."""
    return ~(high < floors)


class TorchBackend:
    """On the processor, or on another device.

    There the best rows are looked for in eight bits first, as on the processor, and keys stay while its memory has room
    for them; what does not fit is copied for each question.
    """

    library = "mkldnn"
    """Whose setting in torch.backends says how it multiplies."""

    def __init__(self, name: str = "torch", device: str = "cpu", room: Callable[[], int] | None = None) -> None:
        """`room()`: how many bytes of a device are free; None for the processor, which has the keys already."""
        self.name, self._device, self._torch = name, device, _torch()
        self._keys = self._upload if room is None else DeviceCopies(self._upload, room).get
        if room is not None and kernels.library() is not None:  # codes are made by the compiled loops
            self.screen = DeviceScreen(self._torch, device, room, CodesCache())

    @property
    def rounding(self) -> float:
        """As torch is set at this moment: a training in the same process may have asked for less precision."""
        return product_rounding(self._torch, self.library)

    def scores(self, keys: NDArray[np.float32], queries: NDArray[np.float32]) -> NDArray[np.float32]:
        if forked():  # OpenMP would wait for threads of the parent's, as torch's own loaders know
            self._torch.set_num_threads(1)
        with undisturbed(self._torch, self._device):
            scores: NDArray[np.float32] = (self._upload(queries) @ self._keys(keys).T).cpu().numpy()
        return scores

    def _upload(self, rows: NDArray[np.float32]) -> Any:
        with warnings.catch_warnings():
            # Keys are read-only arrays; torch warns that it cannot know that nobody writes to them.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
            return self._torch.from_numpy(np.ascontiguousarray(rows)).to(self._device)


def cuda_backend() -> TorchBackend:
    """Raises MissingPackage where torch sees no GPU."""
    cuda = _torch().cuda
    if not cuda.is_available():
        raise MissingPackage(
            "torch sees no GPU.",
            hint='Use backend="int8" or "numpy", or install a CUDA build of torch.',
            field="backend",
        )
    found = TorchBackend("torch-cuda", "cuda", lambda: int(cuda.mem_get_info()[0]))
    found.library = "cuda"
    return found


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingPackage(
            "torch is not installed.", hint="pip install 'dualform[record]' brings it.", field="backend"
        ) from None
    return torch
