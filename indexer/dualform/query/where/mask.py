"""Which slots a `where` leaves.

A mask is arithmetic removal from the sum of this training, not a training without those slots.

Shapes: T slots of a space, D datapoints, H entries of a layer (the slots of its space that it has).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dualform.answers.table import free_name
from dualform.errors import BadInput, BadMask, EmptyMask, NotFound
from dualform.faults import shortage
from dualform.query.attended import attended
from dualform.query.bounds import UNBOUNDED, QuestionBounds
from dualform.query.view import Check, View, never
from dualform.query.where.expression import Expression, Membership, parse
from dualform.questions.filters import Filter
from dualform.store.layer import Layer
from dualform.store.reading.space import Space
from dualform.store.shard import scratch, threaded

HAVING = "Spaces that have it: "
"""How a hint begins where a layer's space lacks a column and others have it."""
_CHUNK = 500_000
"""Slots or datapoints whose columns are laid out, and evaluated, at once."""
_ROW_GROUP = 122_880
"""Rows that DuckDB gives to one thread: fewer would not be shared among several."""
_VECTOR, _WORK = 2048, 1 << 19
"""Rows that DuckDB takes at once, and what it may do with them before it can be interrupted (Expression.work): an
expression of many nodes, or of long texts, gets fewer rows."""


@dataclass(frozen=True)
class Source:
    """How a selection came about."""

    where: str | Filter | None
    without: tuple[int, ...] = ()
    """Numbers of the shards whose entries were left out beside (dualform.query.shards)."""


@dataclass(frozen=True, eq=False)
class Selection:
    """The entries of a layer that stay."""

    identity: str
    """Equal for equal masks of layers that have the same entries; empty for no mask of a layer that has all slots."""
    stays: NDArray[np.bool_]
    """bool[H]."""
    source: Source | None = None
    """What another process can make the same selection of; None where nothing it is told would do."""
    stored: bool = True
    """Whether what is derived of it may be kept on disk, and taken from there: not of one of many groups, nor where the
    record itself is held against something.
    """

    @cached_property
    def entries(self) -> NDArray[np.int64]:
        """int64[m], ascending."""
        return np.flatnonzero(self.stays)

    @cached_property
    def count(self) -> int:
        return int(np.count_nonzero(self.stays))

    @property
    def nbytes(self) -> int:
        return self.stays.nbytes + 8 * self.count


def selection(view: View, layer: Layer, where: str | Filter | None, check: Check = never) -> Selection:
    """The entries of a layer that a mask leaves, which may be none.

    Raises BadMask or NotFound as `checked_expression`, `require_values` and `select` say, and what `check` raises,
    which is called between blocks of work.
    """
    entries, space = view.snapshot.entries(layer.name), view.snapshot.space(layer.space)
    # Layers that have every slot of their space share what was made for one of them.
    whose = ("space", layer.space) if entries.all else ("layer", layer.name)
    within = "" if entries.all else f"entries of {layer.name!r}: "
    if where is None:
        everything = Source(None)
        return view.cache.get(
            ("selection", *whose, ""), lambda: Selection(within, np.ones(entries.count, dtype=bool), everything)
        )
    spaces = [view.snapshot.space(name) for name in view.snapshot.spaces]
    expression = checked_expression(space, spaces, where, view.datasets, view.bounds)

    def made() -> Selection:
        require_one_dataset(space, expression)
        require_values(layer.name, space, spaces, entries.slots, expression.valued)
        key = "mask", layer.space, expression.identity
        stays = view.cache.get(key, lambda: select(space, expression, check), check)
        own = stays if entries.slots is None else stays[entries.slots]
        selection = Selection(within + expression.identity, own, Source(where))
        if not selection.count:  # NOT (x IS NULL), and whatever else comes to the same
            require_values(layer.name, space, spaces, entries.slots, expression.columns)
        return selection

    return view.cache.get(("selection", *whose, expression.identity), made, check)


def record_itself(view: View, layer: Layer) -> Selection:
    """All entries of a layer, of which nothing is taken that was derived before."""
    # No SQL reads like this, so no mask has this identity.
    return replace(selection(view, layer, None), identity="the record itself", stored=False)


def checked_expression(
    space: Space,
    spaces: Collection[Space],
    where: str | Filter,
    datasets: Callable[[], Iterable[str]],
    bounds: QuestionBounds = UNBOUNDED,
) -> Expression:
    """The checked expression of `where`, asked of one of all `spaces`. `datasets()` are those recorded in any.

    Raises BadMask, or NotFound for a column that the space does not have, and for a dataset that no slot has: a
    misspelt name in `dataset <> '…'` would otherwise keep everything without a word.
    """
    everywhere = [name for one in spaces for name in one.columns if name not in space.columns]
    expression = parse(where, tuple(dict.fromkeys([*space.columns, *everywhere])), bounds)
    for name in expression.columns:
        if name not in space.columns:
            having = ", ".join(one.name for one in spaces if name in one.columns)
            raise NotFound(
                f"There is no column {name!r} in space {space.name!r}.", hint=f"{HAVING}{having}.", field="where"
            )
    if expression.datasets:
        known = list(datasets())
        for name in expression.datasets:
            if name not in known:
                there = f"Datasets: {', '.join(known)}." if known else "This memory was recorded without dataset names."
                raise NotFound(f"There is no dataset {name!r} in this memory.", hint=there, field="where")
    return expression


def require_values(
    layer: str,
    space: Space,
    spaces: Collection[Space],
    entries: NDArray[np.int64] | None,
    columns: Iterable[str],
) -> None:
    """Raises NotFound for a column of those named that is NULL in all entries of a layer.

    A mask over such a column would keep nothing of the layer, and leave it at W_0 without a word. `entries` are the
    slots that the layer has, int64[H]; None for all.
    """
    for name in columns:
        null = space.is_null(name)
        if not isinstance(null, np.ndarray):
            throughout = null
        else:
            throughout = bool((null if entries is None else null[entries]).all())
        if throughout and (space.count if entries is None else len(entries)):
            having = [one.name for one in spaces if name in one.columns and not np.all(one.is_null(name))]
            there = f"{HAVING}{', '.join(having)}." if having else "No space has it."
            if space.name in having:
                there = f"Other layers of space {space.name!r} have it."
            raise NotFound(
                f"Column {name!r} is NULL in all slots of layer {layer!r} (space {space.name!r}).",
                hint=there,
                field="where",
            )


def select(space: Space, expression: Expression, check: Check = never) -> NDArray[np.bool_]:
    """bool[T]: the slots for which the expression is true; NULL is not true.

    Evaluated once a datapoint where it names only what is the same for all slots of one, else once a slot. Raises
    BadMask where it is not boolean or fails on a value (a CAST of a text that is no number).
    """
    names = list(expression.columns)
    if not names:
        return np.full(space.count, _constant(expression, check))
    if space.sample_columns.issuperset(names):
        return space.spread(_of_datapoints(space, expression, names, check))
    starts = range(0, max(space.count, 1), _CHUNK)
    blocks = (space.between(start, min(start + _CHUNK, space.count), names) for start in starts)
    return _evaluate_all(expression, blocks, space.count, check)


def select_datapoints(space: Space, expression: Expression, nan_is_null: Collection[str] = ()) -> NDArray[np.bool_]:
    """bool[D]: all datapoints, of this space or not, for which an expression of columns of the sample is true.

    `nan_is_null`: columns whose NaN is read as NULL. Raises BadMask as `select`.
    """
    if not expression.columns:
        return np.full(space.samples.count, _constant(expression))
    rows = space.sample_table(expression.columns)
    for place, name in enumerate(rows.column_names):
        if name in nan_is_null:
            rows = rows.set_column(place, name, pc.if_else(pc.is_nan(rows[name]), None, rows[name]))
    return _evaluate_all(expression, _blocks(rows), len(rows))


def _constant(expression: Expression, check: Check = never) -> bool:
    """Whether an expression without columns is true."""
    return bool(_evaluate_all(expression, [pa.table({"slot": pa.array([0])})], 1, check)[0])


def _of_datapoints(space: Space, expression: Expression, names: list[str], check: Check) -> NDArray[np.bool_]:
    """bool[D]; False for datapoints that have no slot in the space, of which the expression is not asked."""
    rows, there = space.sample_table(names), space.datapoints()
    if there is None:
        return _evaluate_all(expression, _blocks(rows), len(rows), check)
    stays = np.zeros(len(there), dtype=bool)
    stays[there] = _evaluate_all(expression, _blocks(rows.filter(pa.array(there))), len(rows), check)
    return stays


def _blocks(rows: pa.Table) -> Iterator[pa.Table]:
    """The table in pieces, at least one: of a table without rows the expression's type is checked."""
    return (rows.slice(start, _CHUNK) for start in range(0, max(len(rows), 1), _CHUNK))


def _evaluate_all(
    expression: Expression, blocks: Iterable[pa.Table], rows: int, check: Check = never
) -> NDArray[np.bool_]:
    """bool[rows]: where the expression is true, of all blocks one after another. `rows`: how many there are, about.

    Raises BadMask as `select`.
    """
    found = list[NDArray[np.bool_]]()
    try:
        with scratch() as connection, threaded(connection) if rows > _ROW_GROUP else nullcontext():
            for block in blocks:
                check()
                found.append(_evaluate(connection, expression, block, check))
            connection.unregister("slots")
    except duckdb.Error as error:
        short = shortage(error, "where cannot be evaluated: this process")
        raise short or BadMask(f"where cannot be evaluated: {first_line(error)}", field="where") from None
    return np.concatenate(found)


def _evaluate(
    connection: duckdb.DuckDBPyConnection, expression: Expression, rows: pa.Table, check: Check
) -> NDArray[np.bool_]:
    """bool[rows]: where the expression is true."""
    for own in expression.members:
        rows = rows.append_column(own.name, _is_member(rows[own.column], own))
    # Several threads may answer out of order: DuckDB joins the rows with a list of five values or more.
    numbers = np.arange(len(rows), dtype=np.int32)
    number = free_name("number", [name.lower() for name in rows.column_names])
    rows = rows.append_column(number, pa.array(numbers))
    # DuckDB takes a batch at a time, at the end of which it may be interrupted; what it makes of one lies in memory.
    batches = rows.to_batches(max(1, min(_VECTOR, _WORK // max(1, expression.work))))
    connection.register("slots", pa.Table.from_batches(batches, rows.schema))  # in place of what was there

    def work() -> NDArray[np.bool_]:
        statement = f"SELECT {expression.sql} AS stays, {number} FROM slots"
        found = connection.sql(statement, params=list(expression.parameters))
        kind = str(found.types[0])
        if kind != "BOOLEAN":
            raise BadMask(
                f"where must be true or false for each slot, but has type {kind}.",
                hint='Write a comparison, for example where="label = 3".',
                field="where",
            )
        answered = found.to_arrow_table()
        stays = np.zeros(len(numbers), dtype=bool)
        stays[np.asarray(answered[number])] = np.asarray(answered["stays"].fill_null(False), dtype=bool)
        return stays

    return attended(work, connection.interrupt, check)


def require_one_dataset(space: Space, expression: Expression) -> None:
    """Raises BadMask where samples are named by number alone and some number is a sample of several datasets."""
    named = [own for own in expression.members if own.column == "sample"]
    if not named or "dataset" in expression.columns or not {"sample", "dataset"}.issubset(space.columns):
        return
    names = ["dataset", "sample"]
    of_samples = space.sample_columns.issuperset(names)
    rows = space.sample_table(names) if of_samples else space.between(0, space.count, names)
    for own in named:
        chosen = rows.filter(_is_member(rows["sample"], own).fill_null(False))
        pairs = chosen.group_by(names).aggregate([])
        if pairs.num_rows > pc.count_distinct(pairs["sample"]).as_py():
            datasets = ", ".join(str(dataset) for dataset in pc.unique(pairs["dataset"]).to_pylist())
            raise BadMask(
                f"where names samples by number, and some number is a sample of several datasets: {datasets}.",
                hint="Name the dataset too, for example where=\"dataset = 'mnist' AND sample < 100\".",
                field="where",
            )


def require_one_space(view: View, spaces: Collection[str], where: str | Filter, hint: str) -> None:
    """Raises BadInput where slots of several spaces are named by number: each space numbers its own."""
    if len(spaces) < 2:
        return
    columns = dict.fromkeys(name for space in view.snapshot.spaces for name in view.snapshot.space(space).columns)
    if "slot" in parse(where, columns, view.bounds).columns:
        raise BadInput("slots are numbered by space, and where does not name one.", hint=hint, field="where")


def _is_member(column: pa.ChunkedArray, own: Membership) -> pa.ChunkedArray:
    """bool[rows], NULL where the column is. Raises BadMask for ids of another kind than the column's values."""
    texts, numbers = pa.types.is_string(column.type), pa.types.is_integer(column.type)
    ids = own.ids.values
    if not (numbers and isinstance(ids, np.ndarray)) and not (texts and isinstance(ids, tuple)) and len(ids):
        kind = "whole numbers" if isinstance(ids, np.ndarray) else "texts"
        raise BadMask(
            f"where compares column {own.column!r}, of type {column.type}, with a list of {kind}.",
            hint="Use a list only with a column of whole numbers or of texts, each with its own kind.",
            field="where",
        )
    known = pa.array(list(map(str, ids)), pa.string()) if texts else pa.array(np.asarray(ids, dtype=np.int64))
    found = pc.is_in(column.cast(pa.int64()) if numbers else column, value_set=known)
    return pc.if_else(column.is_valid(), found, None)


def require_entries(
    selection: Selection, where: str | Filter | None, datasets: Callable[[], Iterable[str]]
) -> Selection:
    """The selection, or EmptyMask where it leaves nothing."""
    if selection.count:
        return selection
    if where is None:
        raise EmptyMask("This memory does not contain any slots yet.", field="where")
    names = list(datasets())
    known = f"; datasets: {', '.join(names)}" if names else ""
    raise EmptyMask(
        f"where matches none of {len(selection.stays):,} slots: {where}",
        hint=f'See which slots there are: sql("SELECT dataset, label, count(*) FROM slots GROUP BY ALL"){known}.',
        field="where",
    )


def first_line(error: Exception) -> str:
    """What DuckDB says, without the statement that it was shown."""
    return str(error).strip().split("\n", 1)[0]
