"""Keys in eight bits: how they are coded, stored next to the keys, and cached.

Codes of key sources: held between questions, read from beside the keys, or made.

Shapes: R rows of a key source.

Codes and norms of a key source, kept beside the segment that its keys come from.

Shapes: R rows of the source, G groups of kernels.ROWS rows, g of them in a block, W words of four dimensions.

    KEYS.codes    a derived file: the norms float64[R], then block after block uint8[g, W, ROWS, 4] with its numbers
                  float32[4, g * ROWS]

A block is all that a screen needs of its rows, so that the first question of a process screens each block where it was
read, and holds none.

Keys and queries in eight bits, with what the eight bits leave out.

Shapes: R rows of a key source, n queries, d dimensions; G groups of kernels.ROWS rows, W words of four dimensions.

    x = scale * code + low + r      code from 0 to 255, one scale and one low for each key
    q = scale * code + r            code up to kernels.greatest(), one scale for each query; r may be coded again

so that x . q = scale_x scale_q (code_x . code_q) + low sum(q) up to |r_x| |q| + |x - low - r_x| |r_q|, by Cauchy and
Schwarz. The product of the codes is a sum of integers, exact in any order. The norms of what is left out are stored
with the codes, rounded up, and with the rounding of the float32 formula itself; kernels/codes.c does the arithmetic.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.errors import Damaged
from dualform.kernels import arguments
from dualform.kernels.workers import divide
from dualform.store.files import durable_files
from dualform.store.files.durable_files import CODES, SUM, DerivedFile, checksum, remove, write_derived
from dualform.store.files.ram_budget import RamBudget, memory_bytes
from dualform.store.reading.snapshot import Snapshot
from dualform.store.sources.key_format import KeySource

_SLACK = 2.0**-20
"""Relative: far above the rounding of the few float32 operations that it stands for."""
WIDEST = (2**31 - 1) // (255 * 127)
"""Dimensions whose products of codes, all of them the greatest, still add up within 32 bits."""
_MADE_BYTES = 4 << 20
"""Of keys that are read, or made, so that their codes can be."""
_SMALLEST, _LARGEST = 1e-12, 1e12
"""Queries whose greatest number lies outside are not coded: a product of two scales could leave float32."""


@dataclass(frozen=True, eq=False)
class Codes:
    """The keys of one source."""

    codes: NDArray[np.uint8]
    """uint8[G, W, ROWS, 4]."""
    numbers: NDArray[np.float32]
    """float32[4, G * ROWS]: scale, low, and upper bounds of |r| and of |scale * code|."""
    rows: int

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.numbers.nbytes

    @staticmethod
    def bytes_of(rows: int, width: int) -> int:
        """`nbytes` of the codes that keys float32[rows, width] get."""
        return -(-rows // kernels.ROWS) * kernels.ROWS * (4 * -(-width // 4) + 16)

    @staticmethod
    def room(rows: int, width: int) -> Codes:
        """Zeros, for the codes of float32[rows, width]."""
        groups, words = -(-rows // kernels.ROWS), -(-width // 4)
        return Codes(
            np.zeros((groups, words, kernels.ROWS, 4), np.uint8),
            np.zeros((4, groups * kernels.ROWS), np.float32),
            rows,
        )

    def as_argument(self, first: int, group: NDArray[np.int32] | None) -> arguments.KeyCodes:
        """For the loops. `first` is the source's first row in the layer, `group` int32[all rows of the layer]."""
        return arguments.KeyCodes(self.codes, self.numbers, group, self.rows, first)


def quantise(keys: NDArray[np.float32]) -> Codes:
    """The codes of float32[R, d]. A key that is not finite, or out of range, gets a residual that never excludes it."""
    made = Codes.room(*keys.shape)
    _fill(made, keys)
    return made


def quantise_source(source: KeySource) -> Codes:
    """The codes of a key source, block by block, of which none is kept."""
    source = source.passing()
    made, size = Codes.room(source.rows, source.width), max(1, _MADE_BYTES // (4 * kernels.ROWS * max(1, source.width)))
    for first in range(0, len(made.codes), size):
        start, stop = first * kernels.ROWS, min((first + size) * kernels.ROWS, source.rows)
        numbers = made.numbers[:, start : start + size * kernels.ROWS]
        _fill(Codes(made.codes[first : first + size], numbers, stop - start), source.read(start, stop))
    return made


def _fill(made: Codes, keys: NDArray[np.float32]) -> None:
    if keys.shape[1] == 0:
        return
    argument, step = made.as_argument(0, None), 256

    def work(_: int, start: int) -> None:
        kernels.quantise(argument, keys, start, min(start + step, len(keys)))

    divide(range(0, len(keys), step), work)


@dataclass(frozen=True, eq=False)
class RowFactors:
    """What multiplies the inner products of stored rows, within -1 and 1: between the greatest and the least factor of
    the entries that have the row's key.
    """

    most: NDArray[np.float32]
    """float32[n, all rows of the layer], or float32[1, …] for all queries."""
    least: NDArray[np.float32]
    """Likewise; the same array where each row has one entry."""
    spread: NDArray[np.float32] | None = None
    """Likewise: how far off they may be, beyond what float32 rounds of them; None for no further."""

    @property
    def nbytes(self) -> int:
        return self.most.nbytes + self.least.nbytes + (0 if self.spread is None else self.spread.nbytes)


@dataclass(frozen=True, eq=False)
class QueryCodes:
    """Queries."""

    codes: NDArray[np.int8]
    """int8[tiles, W, tile, 4]: `columns` columns for each query, one after the other."""
    columns: int
    numbers: NDArray[np.float32]
    """float32[6, n]: scale, scale of the second codes, sum, and upper bounds of |q|, of |r| and of the rounding of the
    sum."""

    def as_argument(self, absolute: bool, factors: RowFactors | None = None) -> arguments.QueryCodes:
        """`factors`: of these queries, or of all."""
        own = None if factors is None else (factors.most, factors.least, factors.spread)
        return arguments.QueryCodes(self.codes, self.numbers, self.columns, own, absolute)


def can_quantise(queries: NDArray[np.float32]) -> NDArray[np.bool_]:
    """bool[n]: which of float32[n, d] are within range."""
    greatest = np.abs(queries).max(axis=1, initial=0.0)
    return np.asarray((greatest >= _SMALLEST) & (greatest <= _LARGEST))


def quantise_queries(queries: NDArray[np.float32], columns: int = 1) -> QueryCodes:
    """The codes of float32[n, d], which are within range: once or, in two columns, twice."""
    count, width = queries.shape
    wide, greatest = queries.astype(np.float64), kernels.greatest()
    scale = (np.abs(wide).max(axis=1) / greatest).astype(np.float32).astype(np.float64)
    scales = (scale, (scale / (2 * greatest)).astype(np.float32).astype(np.float64))
    left, codes = wide, []
    for step in scales[:columns]:
        codes.append(np.clip(np.rint(left / step[:, None]), -greatest, greatest))
        left = left - codes[-1] * step[:, None]
    coded, sums = wide - left, wide.sum(axis=1)
    slack = _SLACK * (np.abs(sums) + np.abs(wide).sum(axis=1) * 2.0**-20)
    bounds = (_norm(wide), _norm(left) + _SLACK * (_norm(coded) + _norm(wide)), slack)
    numbers = np.array([*scales, sums, *((1 + _SLACK) * bound for bound in bounds)], np.float32)
    return QueryCodes(_in_tiles(np.stack(codes, axis=1).reshape(count * columns, width)), columns, numbers)


def _in_tiles(codes: NDArray[np.float64]) -> NDArray[np.int8]:
    tile, words = kernels.tile(), -(-codes.shape[1] // 4)
    padded = np.zeros((-(-len(codes) // tile) * tile, words * 4), np.int8)
    padded[: len(codes), : codes.shape[1]] = codes
    return np.ascontiguousarray(padded.reshape(-1, tile, words, 4).transpose(0, 2, 1, 3))


def _norm(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths: NDArray[np.float64] = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    return lengths


KIND = "codes 1"
_BLOCK_BYTES = 2 << 20
_ROUNDED = 1 + 1e-9
"""Lengths are rounded up as the codes are made; those that they are held against are rounded as they come."""


@dataclass(frozen=True)
class StoredCodes:
    file: DerivedFile
    rows: int
    width: int

    @classmethod
    def open(cls, source: KeySource) -> StoredCodes | None:
        """None where there are none, or those of something else."""
        place = _place(source)
        file = None if place is None else DerivedFile.open(place, KIND, _origin(source))
        return cls(file, source.rows, source.width) if file and file.sizes == _sizes(source) else None

    def norms(self) -> NDArray[np.float64] | None:
        """float64[R]; None where the file was altered, as of the other methods, and where one is not finite: those of
        keys that hold NaN are measured again.
        """
        part = self.file.read(0)
        found = None if part is None else part.view(np.float64)
        return None if found is None or not np.isfinite(found).all() else found

    @property
    def blocks(self) -> int:
        return len(self.file.sizes) - 1

    @property
    def block_bytes(self) -> int:
        """Of the largest block."""
        return max(self.file.sizes[1:])

    def groups(self, block: int) -> tuple[int, int]:
        """The first group of a block, and the one past its last."""
        size = block_groups(self.width)
        return block * size, min((block + 1) * size, -(-self.rows // kernels.ROWS))

    def block(self, number: int, room: NDArray[np.uint8] | None = None) -> Codes | None:
        """The codes of a block's rows; they lie in `room` where that is given."""
        part = self.file.read(number + 1, room)
        if part is None:
            return None
        first, last = self.groups(number)
        words, padded = -(-self.width // 4), (last - first) * kernels.ROWS
        codes = part[: padded * words * 4].reshape(last - first, words, kernels.ROWS, 4)
        numbers = part[codes.size :].view(np.float32).reshape(4, padded)
        return Codes(codes, numbers, min(padded, self.rows - first * kernels.ROWS))

    def whole(self) -> Codes | None:
        """All codes."""
        made, room = Codes.room(self.rows, self.width), np.empty(self.block_bytes, np.uint8)
        for number in range(self.blocks):
            block, (first, last) = self.block(number, room), self.groups(number)
            if block is None:
                return None
            made.codes[first:last] = block.codes
            made.numbers[:, first * kernels.ROWS : last * kernels.ROWS] = block.numbers
        return made


def write_codes(source: KeySource, codes: Codes, norms: NDArray[np.float64]) -> None:
    """Keep what was made of a source, where that is worth a file."""
    if (place := _place(source)) is None:
        return
    size = block_groups(source.width)
    blocks = [
        (
            codes.codes[first : first + size],
            np.ascontiguousarray(codes.numbers[:, first * kernels.ROWS : (first + size) * kernels.ROWS]),
        )
        for first in range(0, len(codes.codes), size)
    ]
    write_derived(place, KIND, _origin(source), [(np.ascontiguousarray(norms),), *blocks])


def _sizes(source: KeySource) -> tuple[int, ...]:
    """Bytes of the parts of its file."""
    groups, size = -(-source.rows // kernels.ROWS), block_groups(source.width)
    blocks = (min(size, groups - first) * kernels.ROWS for first in range(0, groups, size))
    return 8 * source.rows, *(Codes.bytes_of(rows, source.width) for rows in blocks)


def check_derived(memory: Snapshot) -> list[str]:
    """Removes files of codes that do not fit their keys; returns a sentence each. Kept sums are removed unread: which
    slots they are of cannot be told from the file. All of them are made again when they are needed.
    """
    problems, folders = list[str](), set[Path]()
    for source in (source for own in memory.sources.values() for source in own):
        if source.segment is not None:
            folders.add(source.segment.path.parent)
        place = _place(source)
        with suppress(Damaged):  # of the keys: that is for `check_memory` to say
            if place is not None and place.exists() and not _fits(source):
                problems.append(f"{place} did not fit its keys.{_removed(place)}")
    sums = sorted(file for folder in folders for file in folder.glob(f"*{SUM}"))
    return problems + [f"{file} cannot be checked.{failed}" for file in sums if (failed := _removed(file, ""))]


def _removed(file: Path, done: str = " It was removed, and is made again when needed.") -> str:
    try:
        remove(file)
    except OSError as error:
        return f" Remove it: {error.strerror}."
    return done


def _fits(source: KeySource) -> bool:
    """Whether the codes beside a source exclude nothing that its keys do not, and the norms are those of its keys."""
    stored, source = StoredCodes.open(source), source.passing()
    if stored is None:
        return False
    lengths = stored.norms()
    for number in range(stored.blocks):
        block, start = stored.block(number), stored.groups(number)[0] * kernels.ROWS
        if block is None:
            return False
        keys = source.read(start, start + block.rows).astype(np.float64)
        codes = block.codes.swapaxes(1, 2).reshape(-1, 4 * block.codes.shape[1])[: block.rows, : source.width]
        scale, low, left, coded = block.numbers[:, : block.rows, None].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            parts = scale * codes
            fits = np.linalg.norm(keys - parts - low, axis=1) <= left[:, 0] * _ROUNDED
            fits &= np.linalg.norm(parts, axis=1) <= coded[:, 0] * _ROUNDED
            own = np.linalg.norm(keys, axis=1)
        if not (fits | (left[:, 0] == np.inf)).all():
            return False
        if lengths is not None and not np.allclose(lengths[start : start + block.rows], own, rtol=1e-12, atol=0):
            return False
    return True


def block_groups(width: int) -> int:
    """g, of keys of a width."""
    return max(1, _BLOCK_BYTES // Codes.bytes_of(kernels.ROWS, width))


def _place(source: KeySource) -> Path | None:
    """None for keys of which a segment is but a part, as those of a view, and for those that are not worth a file."""
    segment = source.segment
    if segment is None or source.identity != segment.identity or not source.width:
        return None
    worth = segment.size >= durable_files.LEAST_BYTES and Codes.bytes_of(source.rows, source.width) <= segment.size
    return segment.path.with_name(f"{segment.path.name}{CODES}") if worth else None


def _origin(source: KeySource) -> str:
    """What the codes are of: the content of a segment, the form of its keys, and how the codes lie."""
    assert source.segment is not None
    return (
        f"{checksum(source.segment.checksums)} {source.rows}x{source.width} {kernels.ROWS} {block_groups(source.width)}"
    )


class CodesCache:
    """Codes of key sources, which never change; the least recently used dropped beyond a budget."""

    def __init__(self, most_bytes: int | None = None, budget: RamBudget | None = None) -> None:
        """`most_bytes`: an eighth of the machine's memory where it is None. `budget`: what is shared with other caches;
        None for one of `most_bytes`.
        """
        self.most_bytes = most_bytes = memory_bytes() // 8 if most_bytes is None else most_bytes
        """Of the codes of one layer: beyond it they are not held, since each question would push them out."""
        self._budget = budget or RamBudget(most_bytes)
        self._owner = object()
        self._passed = set[Hashable]()
        """Sources whose stored codes were screened without being held."""
        self.found = self.made = 0
        """How often a scan found a source's codes held, and how often they were read or made."""
        self._lock = threading.Lock()
        self._making = threading.Lock()

    def get(self, source: KeySource, norms: NDArray[np.float64] | None = None) -> Codes:
        """The codes of a key source: held, or stored beside it, or made.

        With its canonical `norms`, float64[R], what is made is stored for the next process.
        """
        identity = source.identity
        if (held := self._look(identity)) is not None:
            return held
        with self._making:  # makers share all cores: one at a time is as fast, and never makes the same twice
            if (held := self._look(identity)) is not None:
                return held
            self._count(made=1)
            stored = StoredCodes.open(source)
            made = stored.whole() if stored else None
            if made is None:
                made = quantise_source(source)
                if norms is not None:
                    write_codes(source, made, norms)
        self._budget.keep(self._owner, identity, made, made.nbytes)
        return made

    @property
    def nbytes(self) -> int:
        """Of what is held."""
        return self._budget.bytes_of(self._owner)

    def clear(self) -> None:
        """Let go of everything; whoever is screening keeps what it has."""
        self._budget.forget(self._owner)

    def passing(self, source: KeySource, hold: bool) -> StoredCodes | None:
        """Stored codes of a source that is not held, to be screened block by block and not held either.

        None where there are none, and, with `hold`, from the second time on: a process that asks once neither waits
        for memory nor fills it.
        """
        identity = source.identity
        if self._look(identity) is not None:
            self._count(found=1)
            return None
        if hold and identity in self._passed:
            return None
        stored = StoredCodes.open(source)
        if stored is not None:
            with self._lock:
                self._passed.add(identity)
            self._count(made=1)
        return stored

    def _look(self, identity: Hashable) -> Codes | None:
        held: Codes | None = self._budget.find(self._owner, identity)
        return held

    def _count(self, *, found: int = 0, made: int = 0) -> None:
        with self._lock:
            self.found += found
            self.made += made
