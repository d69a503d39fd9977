"""The columns of slots: what the arguments of `step` say of a batch.

What is said to a routed space: the k-th saying belongs to the k-th call.

Nothing tells such a call from another one but their order: neither its size nor its step.

What is said of steps: the statements of each one, and the columns that those of a recording come to.

Shapes: B rows of the step, `L...` token dimensions of a batch. What an entry may be stands in column_values.py.

What a training may say under which name, in this run as in those that it goes on from.

A column keeps its type, and no two differ in case alone: a mask over one would read the other. `share` is said by a
budget, for a run that holds one and for those before and behind it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from dualform.errors import BadInput, RecordingError
from dualform.record.column_values import (
    Array,
    check_names,
    checked_at,
    checked_dims,
    column_of,
    fitted,
    mask_of,
    nulls,
    spread,
)
from dualform.record.layout import Shape, misfit
from dualform.record.setup.plan import Plan
from dualform.record.slots.spaces import Spaces
from dualform.store.manifest import Manifest
from dualform.store.tables import EXTENTS, KINDS, SAID, SAMPLES, SHARE, SLOTS, ColumnTypes, common_types, duckdb_type


class KnownColumns:
    """The names and types of the runs before, and the names of this one."""

    def __init__(self, before: Mapping[str, ColumnTypes] | None = None, sampled: bool = False) -> None:
        """`before`: by space, the columns that runs before have of its single slots, and under "" those of samples;
        `sampled`: whether any run of the training holds a budget.
        """
        self._before = before or {}
        self._sampled = sampled
        self._spelled = {name.lower(): name for types in self._before.values() for name in types}

    @classmethod
    def of(cls, plan: Plan) -> KnownColumns:
        """Those of a training. Raises RecordingError where a budget would take the name of a column that it has."""
        manifests = [] if plan.resumed is None else plan.resumed.manifests
        before = _said(manifests)
        if plan.budget is not None and any(name.lower() == SHARE for types in before.values() for name in types):
            raise RecordingError(
                f"the resumed training has its own column {SHARE!r}, which a recorder with a budget fills.",
                hint="Resume it without a budget, or record into a new folder.",
            )
        sampled = plan.budget is not None or any(manifest.sampling is not None for manifest in manifests)
        # Each rank has types of its own, of which a reader makes one.
        return cls(before if plan.ranks is None else {}, sampled)

    def check_names(self, names: Iterable[str]) -> None:
        """Raises BadInput for a column that another one of the training is called but for case, and for a budget's."""
        for name in names:
            if self._sampled and name.lower() == SHARE:
                raise BadInput(
                    f"column {name!r} is filled by a recorder with a budget.",
                    hint="Rename yours.",
                    field=name,
                )
            known = self._spelled.setdefault(name.lower(), name)
            if known != name:
                raise BadInput(
                    f"Columns {known!r} and {name!r} differ only in case, which SQL ignores.",
                    hint=f"Use {known!r} in every step, or rename one of them.",
                    field=name,
                )

    def fitted(self, space: str, name: str, entry: Array) -> Array:
        """An entry in the type that runs before gave a column of a space's slots, or of samples (""): as it is if they
        had none. Raises BadInput for another type.
        """
        known, now = self._before.get(space, {}).get(name), duckdb_type(entry)
        if known is None or known == now:
            return entry
        try:
            return fitted(name, entry, KINDS[known].numpy)
        except BadInput:
            raise BadInput(
                f"Column {name!r} is {now}, but {known} in the training that is resumed.",
                hint="Pass it with its old type, or under another name.",
                field=name,
            ) from None


def _said(manifests: Iterable[Manifest]) -> dict[str, ColumnTypes]:
    """As `KnownColumns` takes it."""
    found: dict[str, ColumnTypes] = {}
    for manifest in manifests:
        for table in ("samples", *manifest.spaces):
            taken = {*SAMPLES, *([SHARE] if manifest.sampling is not None else [])}
            own = {name: kind for name, kind in manifest.columns.get(table, {}).items() if name not in taken}
            space = "" if table == "samples" else table
            found[space] = common_types(found.get(space, {}), own)
    return found


_OF_EXTENTS = set(EXTENTS) - set(SLOTS)
"""Columns of the tables that hold what is said of single slots."""
_TYPES: Mapping[str, np.dtype[Any]] = {name: KINDS[SAMPLES[name]].numpy for name in SAID}
PLACES = ("row", "position", "mask")
"""What is said of slots and is no column of theirs that a user names."""


class Metadata:
    """The checked arguments of one step; holds copies, so that the training may reuse its buffers."""

    def __init__(
        self,
        *,
        dataset: str | Sequence[str] | None = None,
        label: Any = None,
        sample: Any = None,
        position: Any = None,
        mask: Any = None,
        at: Mapping[str, Mapping[str, Any]] | None = None,
        batch_dim: int | Mapping[str, int] | None = None,
        columns: Mapping[str, Any],
    ) -> None:
        """Raises BadInput naming the argument that is no column."""
        check_names(columns)
        given = {"dataset": dataset, "label": label, "sample": sample, **columns}
        self.entries = {name: column_of(name, value) for name, value in given.items() if value is not None}
        """By column, of what is said of the whole step."""
        self.position = None if position is None else column_of("position", position)
        self.mask = None if mask is None else mask_of(mask)
        self._batch_dim = checked_dims(batch_dim)
        self._at: dict[str, list[dict[str, Array]]] = {}
        for space, of in checked_at(at).items():
            self.say(space, of)

    def say(self, space: str, columns: Mapping[str, Any]) -> None:
        """Say columns of the slots of one space. Raises BadInput."""
        check_names(name for name in columns if name not in (*SAID, "position", "row"))
        for name in columns:
            if name.lower() in _OF_EXTENTS:
                raise BadInput(f"{name!r} cannot be a column of single slots.", hint="Rename it.", field=name)
        said = {
            name: mask_of(value) if name == "mask" else column_of(name, value)
            for name, value in columns.items()
            if value is not None
        }
        self._at.setdefault(space, []).append(said)

    @property
    def spaces(self) -> list[str]:
        """The spaces that are spoken to by name."""
        return list(self._at)

    def at(self, space: str) -> dict[str, Array]:
        """What is said to one space by name: columns, `mask`, `position` and `row`; the last of what was said again."""
        return {name: entry for saying in self.sayings(space) for name, entry in saying.items()}

    def sayings(self, space: str) -> Sequence[dict[str, Array]]:
        """Everything that was said to one space by name, one after the other."""
        return self._at.get(space, ())

    @property
    def names(self) -> set[str]:
        """Of the columns that are said, of the whole step or to one space."""
        return {name for said in (self.entries, *chain(*self._at.values())) for name in said if name not in PLACES}

    @property
    def of_slots(self) -> bool:
        """Whether anything is said of single slots, or to one space by name."""
        single = self.position is not None or self.mask is not None or bool(self._at)
        return single or any(entry.ndim > 1 for entry in self.entries.values())

    @property
    def shapes(self) -> Hashable:
        """All that decides how a batch is aligned: batch_dim, and the shape of what is passed under each name."""
        dims = self._batch_dim if not isinstance(self._batch_dim, Mapping) else tuple(sorted(self._batch_dim.items()))
        whole = {**self.entries, "position": self.position, "mask": self.mask}
        at = [(space, name, entry.shape) for space in self._at for name, entry in self.at(space).items()]
        return dims, tuple([(n, entry.shape) for n, entry in whole.items() if entry is not None]), (*self._at, *at)

    def batch_dim(self, space: str) -> int | None:
        """The axis that is said to be the batch; None where none is."""
        if isinstance(self._batch_dim, int):
            return self._batch_dim
        return (self._batch_dim or {}).get(space)

    @property
    def axes(self) -> Mapping[str, int]:
        """By space or layer, what is said of it by name."""
        return self._batch_dim if isinstance(self._batch_dim, Mapping) else {}

    @property
    def rows(self) -> int | None:
        """B, of what has rows; None where nothing has."""
        return next((len(entry) for entry in self.arrays.values()), None)

    @property
    def arrays(self) -> dict[str, Array]:
        """Everything said of the whole step that has rows: its first axis is the batch."""
        named = {**self.entries, "position": self.position, "mask": self.mask}
        return {name: entry for name, entry in named.items() if entry is not None and entry.ndim}

    def speaks_of(self, space: str) -> bool:
        """Whether anything that is said depends on which axis of the space is the batch."""
        return bool(self.arrays) or any(entry.ndim for entry in self.at(space).values())


class StepColumns:
    """The columns of one recording. A column keeps the level and the type that it had when it was first given."""

    def __init__(self, spaces: Spaces, known: KnownColumns) -> None:
        self._spaces, self._known = spaces, known
        self._samples: dict[str, np.dtype[Any]] | None = None
        """User columns of samples, which the first step fixes."""
        self._types = dict(_TYPES)
        """What each column of samples stores."""
        self._slots: dict[tuple[str, str], np.dtype[Any]] = {}
        """By space and name, of what is said of single slots."""
        self._levels: dict[str, str] = {}
        """Column -> the space whose slots it speaks of; "" for one of samples."""

    @property
    def said(self) -> dict[str, dict[str, str]]:
        """By column that was given, its DuckDB type in each space of whose single slots it speaks; under "" that of the
        column of samples.
        """
        rows = {("", name): self._types[name] for name, level in self._levels.items() if level == ""}
        found: dict[str, dict[str, str]] = {}
        for (space, name), dtype in {**rows, **self._slots}.items():
            found.setdefault(name, {})[space] = str(duckdb_type(np.empty(0, dtype)))
        return found

    def samples(self, metadata: Metadata, rows: int, step: int) -> dict[str, Array]:
        """The columns of a step's samples, [B] each. Raises BadInput for a column that changed."""
        self._known.check_names(sorted(metadata.names))
        said = {name: entry for name, entry in metadata.entries.items() if self._level(name, entry) == ""}
        own = {name: self._known.fitted("", name, entry) for name, entry in said.items() if name not in SAID}
        if self._samples is None:
            self._samples = {name: entry.dtype for name, entry in own.items()}
            self._types = {**_TYPES, **self._samples}
        for name, entry in own.items():
            if name not in self._samples:
                raise BadInput(
                    f"Column {name!r} first appears at step {step}.",
                    hint=f"Pass {name} from the first step on; None where it is missing.",
                    field=name,
                )
            said[name] = fitted(name, entry, self._samples[name])
        self._levels |= dict.fromkeys(said, "")
        return {name: spread(said.get(name), dtype, rows) for name, dtype in self._types.items()}

    def no_samples(self) -> dict[str, Array]:
        """The columns of a batch that brings no samples."""
        return {name: nulls(0, dtype) for name, dtype in self._types.items()}

    def unknown(self, metadata: Metadata) -> dict[str, Any]:
        """What is said of slots whose row is not known: the single values; None for everything else."""
        single = {
            name: None if np.ma.is_masked(entry) else entry.item()
            for name, entry in metadata.entries.items()
            if entry.ndim == 0
        }
        return {name: single.get(name) for name in self._types}

    def of_slots(self, metadata: Metadata, shapes: Sequence[Shape]) -> dict[str, dict[str, Array]]:
        """By space, what is said of the whole step and speaks of the space's single slots. Raises BadInput.

        `shapes` are those of a space after one another, in the order of their calls.
        """
        whole = self._of_spaces(metadata, shapes)
        for space in whole:
            for saying in metadata.sayings(space):
                for name, entry in saying.items():
                    if name not in PLACES:
                        saying[name] = self._fitted(space, name, entry)
        return whole

    def _fitted(self, space: str, name: str, entry: Array) -> Array:
        """As `fitted`, of a column of single slots."""
        entry = self._known.fitted(space, name, entry)
        return fitted(name, entry, self._slots.setdefault((space, name), entry.dtype))

    def _of_spaces(self, metadata: Metadata, shapes: Sequence[Shape]) -> dict[str, dict[str, Array]]:
        said: dict[str, dict[str, Array]] = {shape.space.name: {} for shape in shapes}
        for name, entry in metadata.entries.items():
            space = self._level(name, entry)
            if space is None:
                space = self._token_space(name, entry, shapes)
            if space in said:
                self._levels[name] = space
                said[space][name] = self._fitted(space, name, entry)
        for name, placed in (("position", metadata.position), ("mask", metadata.mask)):
            for space, entry in self._placed(name, placed, shapes).items():
                if space in said:
                    said[space][name] = entry
        return said

    def _level(self, name: str, entry: Array) -> str | None:
        """The space that a column speaks of, "" for samples, None where that is still to be seen."""
        level = self._levels.get(name)
        if level is None:
            return None if entry.ndim > 1 else ""
        if level == "" and entry.ndim > 1:
            raise BadInput(
                f"Column {name!r} had one value for each row at first, but now has one for each token.",
                hint="Pass another column, or give it to one space: step(at={space: {column: values}}).",
                field=name,
            )
        if level and entry.ndim == 1:
            raise BadInput(
                f"Column {name!r} had one value for each token at first, but now has one for each row.",
                hint="Pass another column.",
                field=name,
            )
        return level

    def _token_space(self, name: str, entry: Array, shapes: Sequence[Shape]) -> str:
        """The one space that an entry [B, L...] can speak of; "" where it has no slots at this step."""
        regular = [shape for shape in shapes if not shape.space.routed]
        spaces = list(dict.fromkeys(shape.space.name for shape in regular if shape.space.tokens))
        if len(spaces) > 1:
            names = " and ".join(repr(space) for space in spaces)
            raise BadInput(
                f"{name} has a value for each token, but several spaces have tokens: {names}.",
                hint=f"Choose one: step(at={{{spaces[0]!r}: {{{name!r}: …}}}}).",
                field=name,
            )
        if not spaces and regular and not any(space.tokens for space in self._spaces.known.values()):
            raise misfit(name, entry.shape, regular)
        return spaces[0] if spaces else ""

    def _placed(self, name: str, entry: Array | None, shapes: Sequence[Shape]) -> dict[str, Array]:
        """By space: `mask` or `position`, as said of the whole step.

        What has rows only speaks of rows: a mask of all spaces, a position of those where a slot is a row.
        """
        regular = [shape.space for shape in shapes if not shape.space.routed]
        if entry is None:
            return {}
        if entry.ndim > 1:
            return {self._token_space(name, entry, shapes): entry}
        flat = [space for space in regular if not space.tokens] if name == "position" else []
        return {space.name: entry for space in flat or regular}


def routed_columns(
    metadata: Metadata, shapes: Sequence[Shape], spaces: Spaces, step: int, first: bool
) -> list[dict[str, Array]]:
    """By call of one routed space, its columns, `row`, `position` and `mask`; `shapes`: those calls in their order.

    At the first step what is ambiguous is refused; later it is not recorded, with a warning.
    """
    space, found = shapes[0].space.name, [dict[str, Array]() for _ in shapes]
    # What is said of no slots belongs to a call of none, which is no call.
    sayings = [saying for saying in metadata.sayings(space) if all(entry.size for entry in saying.values())]
    for name in dict.fromkeys(name for saying in sayings for name in saying):
        entries = [saying[name] for saying in sayings if name in saying]
        if len(entries) == 1 and entries[0].ndim == 0:
            entries *= len(shapes)
        elif len(shapes) == 1 and all(np.array_equal(entry, entries[0]) for entry in entries):
            entries = entries[:1]
        error = _misplaced(name, entries, shapes, step)
        if error is None:
            for own, entry in zip(found, entries, strict=True):
                own[name] = entry
        elif first:
            raise error
        else:
            spaces.warn_once(
                f"{error.field} of space {space}",
                f"{error.message} It is not recorded for these slots, also in later steps. {error.hint}",
            )
    return found


def _misplaced(name: str, entries: Sequence[Array], shapes: Sequence[Shape], step: int) -> BadInput | None:
    """Why entries are not one for each call of a space."""
    space = shapes[0].space.name
    if len(entries) != len(shapes):
        return BadInput(
            f"{name} of space {space!r} was passed {_times(len(entries))} for {len(shapes)} "
            f"{'call' if len(shapes) == 1 else 'calls'} at step {step}.",
            hint=f"Call step.at({space!r}, {name}=…) once before each call that a gradient reaches.",
            field=name,
        )
    pairs = zip(entries, shapes, strict=True)
    wrong = [
        misfit(name, entry.shape, [shape]) for entry, shape in pairs if entry.ndim and entry.shape != shape.leading
    ]
    return wrong[0] if wrong else None


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
