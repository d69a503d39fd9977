"""Entries of a layer by the values of their slots' columns, kept next to its keys.

Shapes: m entries that the mask leaves, H entries of the layer, T slots of its space, G groups.

Groups of all entries of a layer, kept beside its keys: their values and sizes, and a digest of their members.

A process that asks for kept sums by group need then read no column. The file is named by the manifests, which
vouch for every column, the keys' checksums, the layer and the columns: no other memory finds it.

Arrays made of the slots of a layer, sums over them and groups of them, kept beside its keys.

    layers/LAYER/DIGEST.sum    a derived file: the arrays of one sum, or of one grouping

The digest is of everything that they were made from: the checksums of the rows, the slots, and what each counts. So a
file is found by whoever would make the same arrays, and by nobody else; a mask is whatever slots it leaves.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import DTypeLike, NDArray

from dualform.answers import GroupKey
from dualform.errors import BadInput, NotFound
from dualform.query.view import Check, View, never
from dualform.query.where.mask import Selection, Source
from dualform.store.files import durable_files
from dualform.store.files.durable_files import SUM, DerivedFile, write_derived
from dualform.store.layer import Layer
from dualform.store.reading.shard_tables import as_numpy
from dualform.store.reading.snapshot import Snapshot
from dualform.store.reading.space import Space
from dualform.store.rows import Rows

MOST_BYTES = 64 << 20
"""Of all files of a layer; a single one takes at most a quarter. The oldest go."""


@dataclass(frozen=True)
class StoredArrays:
    path: Path
    kind: str
    """With its version: to be counted up when the same slots are added up in another order."""

    @classmethod
    def of(
        cls, memory: Snapshot, kind: str, rows: Sequence[Rows], numbers: Sequence[NDArray[Any] | None]
    ) -> StoredArrays | None:
        """The place of what is made of some rows, which ones and how often as `numbers` say.

        None where rows are not in files of this memory's folder alone, or too few to be worth it.
        """
        digest, size, folder = xxhash.xxh3_128(kind.encode()), 0, None
        for own in rows:
            digest.update(f"{own.rows}x{own.width}:".encode())
            for source in own.sources:
                segment = source.segment
                if segment is None or not segment.path.is_relative_to(memory.path):
                    return None
                size += segment.size
                folder = folder or segment.path.parent
                # Which columns of the file are read, wherever the folder is.
                columns = str(source.identity).replace(str(segment.path), "")
                digest.update(f"{segment.path.name} {columns} {source.first_row} {source.rows};".encode())
                digest.update(segment.checksums)
        for array in (*numbers, *(own.order for own in rows)):
            digest.update(b"none" if array is None else f"{array.dtype.str}{array.shape}".encode())
            if array is not None:
                digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return (
            cls(folder / f"{digest.hexdigest()}{SUM}", kind) if folder and size >= durable_files.LEAST_BYTES else None
        )

    def read(self, *forms: tuple[DTypeLike, tuple[int, ...]]) -> list[NDArray[Any]] | None:
        """The arrays, of these types and shapes, (-1,) being any length; None where they are not there, or altered."""
        file = DerivedFile.open(self.path, self.kind, self.path.stem)
        if file is None or len(file.sizes) != len(forms):
            return None
        found = list[NDArray[Any]]()
        for number, (dtype, shape) in enumerate(forms):
            part = file.read(number)
            size = np.dtype(dtype).itemsize
            if part is None or (len(part) % size if shape == (-1,) else len(part) != size * int(np.prod(shape))):
                return None
            found.append(part.view(dtype).reshape(shape))
        with suppress(OSError):
            os.utime(self.path)
        return found

    def write(self, *arrays: NDArray[Any]) -> None:
        size = sum(array.nbytes for array in arrays)
        if 4 * size > MOST_BYTES:
            return
        self._make_room(size)
        write_derived(self.path, self.kind, self.path.stem, [(np.ascontiguousarray(array),) for array in arrays])

    def _make_room(self, size: int) -> None:
        with suppress(OSError):
            held = [(path.stat(), path) for path in self.path.parent.glob(f"*{SUM}")]
            held.sort(key=lambda own: own[0].st_mtime_ns)
            total = sum(stat.st_size for stat, _ in held)
            for stat, path in held:
                if total + size > MOST_BYTES:
                    path.unlink(missing_ok=True)
                    total -= stat.st_size


KIND = "groups 1"
_DIGEST_BYTES = 16
_VALUES = (str, int, float, bool, type(None))


class StoredGroups(NamedTuple):
    keys: tuple[GroupKey, ...]
    """One tuple of values per group, in value order."""
    counts: NDArray[np.int64]
    """int64[G]."""
    digest: bytes
    """Of the members."""


def place_of_groups(memory: Snapshot, layer: Layer, by: tuple[str, ...]) -> StoredArrays | None:
    """Where the groups of all entries are; None where they are not worth a file, or might become others."""
    said = memory.tables_digest
    if said is None or not layer.keys:
        return None
    text = json.dumps([said, layer.space, layer.name, by])
    return StoredArrays.of(memory, KIND, [memory.keys(layer.name)], [np.frombuffer(text.encode(), np.uint8)])


def read_groups(place: StoredArrays, columns: int, entries: int) -> StoredGroups | None:
    """Of so many columns and entries; None where they are not there, or do not fit."""
    found = place.read((np.uint8, (-1,)), (np.int64, (-1,)), (np.uint8, (_DIGEST_BYTES,)))
    if found is None:
        return None
    text, counts, digest = found
    try:
        keys = tuple(map(tuple, json.loads(text.tobytes())))
    except (ValueError, TypeError, RecursionError):
        return None
    alike = len(keys) == len(counts) and counts.min(initial=1) > 0 and counts.sum() == entries
    plain = all(len(key) == columns and all(isinstance(own, _VALUES) for own in key) for key in keys)
    return StoredGroups(keys, counts, digest.tobytes()) if alike and plain else None


def write_groups(place: StoredArrays, groups: StoredGroups) -> None:
    text = json.dumps(groups.keys).encode()
    place.write(np.frombuffer(text, np.uint8), groups.counts, np.frombuffer(groups.digest, np.uint8))


STORED_GROUPS = 1 << 16
"""Most groups that are kept in a file: reading the names of more takes long, and cannot stop between."""
_BLOCK = 1 << 17
"""Entries whose values are ranked at once, some hundredths of a second, and groups that are named at once."""


class Members(NamedTuple):
    """The entries that stay, each with its group."""

    entries: NDArray[np.int64]
    """int64[m], ascending."""
    numbers: NDArray[np.int64]
    """int64[m]: the group of each of `entries`."""


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of entries that stay. What is kept of them on disk tells no members: they are made when
    they are first needed.
    """

    by: tuple[str, ...]
    keys: tuple[GroupKey, ...]
    """One tuple of `by` values per group, in value order, NULLs (None) last. Groups that no entry has are left out."""
    counts: NDArray[np.int64]
    """int64[G]."""
    make: Callable[[], Members]
    known_digest: bytes = b""

    @classmethod
    def of(cls, by: tuple[str, ...], keys: tuple[GroupKey, ...], members: Members, counts: NDArray[np.int64]) -> Groups:
        return cls(by, keys, counts, lambda: members)

    @cached_property
    def members(self) -> Members:
        return self.make()

    @property
    def entries(self) -> NDArray[np.int64]:
        return self.members.entries

    @property
    def numbers(self) -> NDArray[np.int64]:
        return self.members.numbers

    @cached_property
    def digest(self) -> bytes:
        """Of the members: equal for equal groups of equal entries."""
        if self.known_digest:
            return self.known_digest
        found = xxhash.xxh3_128(np.ascontiguousarray(self.entries).view(np.uint8).data)
        found.update(np.ascontiguousarray(self.numbers).view(np.uint8).data)
        return found.digest()

    @property
    def nbytes(self) -> int:
        """With the members, made or not."""
        return 16 * int(self.counts.sum()) + self.counts.nbytes + 100 * len(self.keys) * len(self.by)


def group_entries(
    view: View,
    layer: Layer,
    selection: Selection,
    by: tuple[str, ...],
    check: Check = never,
    most: float = inf,
) -> Groups:
    """The selected entries of a layer by columns of their slots.

    Raises NotFound for an unknown column, BadInput as soon as there are more than `most` groups, and what `check`
    raises, which is called between blocks of work.
    """
    key = ("groups", layer.space, selection.identity, by)
    space, slots = view.snapshot.space(layer.space), view.snapshot.entries(layer.name).slots

    def made() -> Groups:
        place = None
        if selection.source == Source(None) and view.shards is None:
            place = place_of_groups(view.snapshot, layer, by)
        if place and (kept := read_groups(place, len(by), len(selection.stays))):
            return Groups(by, *kept[:2], lambda: group(space, slots, selection, by).members, kept.digest)
        found = group(space, slots, selection, by, check, most)
        if place and len(found.keys) <= STORED_GROUPS:
            write_groups(place, StoredGroups(found.keys, found.counts, found.digest))
        return found

    found = view.cache.get(key, made, check)
    _require_few(len(found.keys), most, by)
    return found


@dataclass(frozen=True, eq=False)
class SampleNumbers:
    """Which sample each of some slots is of."""

    unit: str
    """What tells samples apart: "samples", by dataset and sample; "rows" of batches or "slots" where those were not
    recorded."""
    numbers: NDArray[np.int64]
    """int64[slots]."""

    @property
    def nbytes(self) -> int:
        return self.numbers.nbytes


def sample_numbers(view: View, layer: Layer, check: Check = never) -> SampleNumbers:
    """Of the entries of a layer. Layers of one space number samples alike."""
    space, slots = view.snapshot.space(layer.space), view.snapshot.entries(layer.name).slots

    def made() -> SampleNumbers:
        every = np.arange(space.count)
        if space.is_null("sample") is False:
            numbers, count = np.zeros(space.count, dtype=np.int64), 1
            for name in ("sample", "dataset"):
                codes, values = _codes_of_slots(space, name, every, check)
                present, numbers = dense(numbers * len(values) + codes, count * len(values), check)
                count = len(present)
            return SampleNumbers("samples", numbers)
        datapoints = space.spread(np.arange(space.samples.count))  # not step and row, which ranks number alike
        if space.is_null("row") is False and not isinstance(datapoints, np.ma.MaskedArray):
            return SampleNumbers("rows", datapoints)
        return SampleNumbers("slots", every)

    found = view.cache.get(("samples", layer.space), made, check)
    return found if slots is None else replace(found, numbers=found.numbers[slots])


def check_spaces(view: View, spaces: Collection[str], by: tuple[str, ...]) -> None:
    """Raises BadInput where slots of several spaces are grouped by columns that say different things in them."""
    if len(spaces) < 2:
        return
    for name in spaces:
        if not view.snapshot.space(name).sample_columns.issuperset(by):
            raise BadInput(
                f"The layers have slots of several spaces ({', '.join(sorted(spaces))}), whose columns differ.",
                hint='Group only by columns of the sample, such as by="label", or pass layers of one space.',
                field="by",
            )


def joined_keys(
    keys: Mapping[str, Sequence[GroupKey]],
) -> tuple[tuple[GroupKey, ...], dict[str, NDArray[np.int64]]]:
    """All of several lists of groups, in value order, NULLs last; and by list, where each of its groups is among
    them. NaN is one value.
    """
    first = next(iter(keys.values()), [])
    if all(own == first for own in keys.values()):  # in order already, and there may be as many as samples
        return tuple(first), {name: np.arange(len(first)) for name in keys}
    alike = {name: [tuple(map(_one_nan, key)) for key in own] for name, own in keys.items()}
    found = sorted(dict.fromkeys(key for own in alike.values() for key in own), key=_in_order)
    number = {key: place for place, key in enumerate(found)}
    places = {name: np.array([number[key] for key in own], dtype=np.int64) for name, own in alike.items()}
    return tuple(found), places


def _one_nan(value: Any) -> Any:
    """The same object for every NaN, which are no equals of one another."""
    return nan if _is_nan(value) else value


def _in_order(key: GroupKey) -> list[tuple[bool, bool, Any]]:
    return [(value is None, _is_nan(value), 0 if value is None or _is_nan(value) else value) for value in key]


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and isnan(value)


def group(
    space: Space,
    slots: NDArray[np.int64] | None,
    selection: Selection,
    by: tuple[str, ...],
    check: Check = never,
    most: float = inf,
) -> Groups:
    """The groups of the selected entries by columns; with no column, all are one group.

    `slots` is int64[H]: the slot of each entry, None where entries are slots. Raises NotFound for a column that the
    space's slots do not have, and BadInput as soon as there are more than `most` groups.
    """
    for name in by:
        if name not in space.columns:
            listed = ", ".join(space.columns)
            raise NotFound(f"There is no slot column {name!r}.", hint=f"Columns: {listed}.", field="by")
    entries = selection.entries
    chosen = entries if slots is None else slots[entries]
    numbers = np.zeros(len(entries), dtype=np.int64)
    keys: list[GroupKey] = [()]
    for name in by:
        check()
        codes, values = _codes_of_slots(space, name, chosen, check)
        # Dense again after every column, so that the product of the cardinalities cannot overflow.
        present, numbers = dense(numbers * len(values) + codes, len(keys) * len(values), check)
        _require_few(len(present), most, by)
        keys = [
            (*keys[code // len(values)], values[code % len(values)])
            for block in _blocks(present, check)
            for code in block.tolist()
        ]
    counts = np.bincount(numbers, minlength=len(keys)).astype(np.int64)
    return Groups.of(by, tuple(keys), Members(entries, numbers.astype(np.int64)), counts)


def _require_few(groups: int, most: float, by: tuple[str, ...]) -> None:
    if groups > most:
        raise BadInput(
            f"by={', '.join(by)} makes more than {int(most):,} groups, the most that fit into an answer.",
            hint="Pass fewer queries at a time, group by columns with fewer values, or filter with where=.",
            field="by",
        )


def _codes_of_slots(
    space: Space, name: str, slots: NDArray[np.int64], check: Check
) -> tuple[NDArray[np.int64], list[Any]]:
    """As `_codes`, of some slots. What is the same for all slots of a datapoint is ranked once a datapoint."""
    if name in space.sample_columns:
        column = space.sample_table([name])[name]
        texts = pa.types.is_string(column.type)
        codes, values = codes_of_texts(column, check) if texts else _codes(as_numpy(column), check)
        return np.asarray(space.spread(codes)[slots]), values
    return _codes(space.column(name)[slots], check)


def dense(codes: NDArray[np.int64], most: int, check: Check) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The codes that occur, ascending, and for each code its place among those. `most`: one past the greatest."""
    if most > 4 * len(codes) + 1024:
        return _ranked(codes, check)
    there = np.bincount(codes, minlength=most) > 0
    return np.flatnonzero(there), (np.cumsum(there) - 1)[codes]


def _codes(column: NDArray[Any], check: Check) -> tuple[NDArray[np.int64], list[Any]]:
    """The rank of each entry among the column's values, NULL last, and those values."""
    if column.dtype == object:
        chunks = [pa.array(block, pa.string()) for block in _blocks(np.ma.filled(column, None), check)]
        return codes_of_texts(pa.chunked_array(chunks, pa.string()), check)
    nulls = np.ma.getmaskarray(column)
    known = np.ma.getdata(column)[~nulls]
    values, ranks = _ranked(known, check)
    codes = np.full(len(column), len(values), dtype=np.int64)
    codes[~nulls] = ranks
    return codes, [*values.tolist(), *([None] if nulls.any() else [])]


def _ranked(column: NDArray[Any], check: Check) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The distinct values, ascending, and the rank of each entry among them."""
    values = np.unique(np.concatenate([column[:0], *(np.unique(block) for block in _blocks(column, check))]))
    ranks = [np.searchsorted(values, block) for block in _blocks(column, check)]
    return values, np.concatenate([np.empty(0, np.int64), *ranks])


def _blocks(column: NDArray[Any], check: Check) -> Iterator[NDArray[Any]]:
    for start in range(0, len(column), _BLOCK):
        check()
        yield column[start : start + _BLOCK]


def codes_of_texts(column: pa.ChunkedArray, check: Check) -> tuple[NDArray[np.int64], list[Any]]:
    """As `_codes`, of texts, which are not made Python's first."""
    blocks = [column.slice(start, _BLOCK) for start in range(0, len(column), _BLOCK)]
    texts = set[str]()
    for block in blocks:
        check()
        texts.update(block.unique().drop_null().to_pylist())
    distinct, ranks = sorted(texts), [np.empty(0, np.int64)]
    known = pa.array(distinct, column.type)
    for block in blocks:
        check()
        places = pc.index_in(block, value_set=known, skip_nulls=True)
        ranks.append(np.asarray(pc.fill_null(places, len(distinct)), dtype=np.int64))
    return np.concatenate(ranks), [*distinct, *([None] if column.null_count else [])]
