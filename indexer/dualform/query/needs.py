"""Bytes of memory that a question needs while it is answered, at most: what an engine of bounded memory claims for it.

Shapes: n queries, m entries that a mask leaves, H entries of a layer, G groups, d of a key.

Work goes block by block, so that most of it takes the same room however large the memory is (`WORK`), and no more than
a layer's rows and their scores in a small one. What grows with the question is counted here: numbers for each entry,
and the answer itself. Measured, not only counted (tests/query/test_ram_budget.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dualform.answers.contents import MOST_BYTES
from dualform.query.bounds import RANK_BYTES
from dualform.query.resolved import Resolved
from dualform.query.score.canonical import HELD_BYTES
from dualform.query.sql.process import ANSWER, MEMORY, Sql
from dualform.query.sums.group_sum import LARGEST
from dualform.query.sums.grouping import BATCH, many
from dualform.query.view import View
from dualform.questions import (
    Contribution,
    Distribution,
    ExampleGradients,
    GradientSum,
    GradientTopK,
    GroupSum,
    Output,
    Placebo,
    TopK,
)
from dualform.store.layer import Layer
from dualform.store.previews.stored_previews import HELD_BATCHES
from dualform.store.reading.snapshot import Snapshot
from dualform.store.weights import WEIGHTS

WORK = 256 << 20
"""Blocks of keys or values, their codes and scores, candidates: at most."""
BASE = 8 << 20
"""Of it, what the smallest layer takes."""
LEAST = WORK + HELD_BYTES + (64 << 20)
"""What an engine must be given, at most, for questions about a layer."""
SERVED = 96 << 20
"""What a server's process comes to hold beside all that: columns that were read, and what threads and DuckDB keep."""
BUCKETS, MOST_SIBLINGS, AT_ONCE = 64, 200, 256
"""Of placebos (placebo.py): buckets of samples, siblings at most, and queries whose outputs are in hand at once."""
SHARES = 192 << 20
"""Of contributions under Adam and other rules that scale (group_weights.py): scales and factors of the outputs that are
run again at once."""
GROUPS = 256 << 20
"""Of contributions of groups that are run again: the weights of those of one pass, and their buffers."""
_COLUMNS = 12
"""Numbers of eight bytes for each slot that a mask and groups are made with."""
_STATES = 12
"""Matrices of a layer's shape in float64, of weights that are run again: weights, averages, squares and gradients, of
all slots and of those that stay."""
_TEXT, _NUMBER = 400, 64
"""Bytes of one column of one slot that is looked up: a text as an object of Python, or a number with its neighbours in
Arrow's form and NumPy's."""


def least(memory: Snapshot) -> int:
    """What an engine must be given for questions about any layer of a memory."""
    return min(LEAST, _blocks(memory.layers.values(), memory) + (64 << 20))


def of_resolving(view: View, layer: str) -> int:
    """What is needed to read a mask, groups and queries, before their numbers are known."""
    numbers = 8 * _COLUMNS * view.snapshot.count(view.snapshot.layer(layer).space)
    return min(WORK, BASE + numbers) + numbers


def of_slots(view: View, count: int) -> int:
    """Of the columns of so many slots."""
    memory = view.snapshot
    numbers = 8 * _COLUMNS * max(memory.count(space) for space in memory.spaces)
    columns = [memory.columns(space).values() for space in memory.spaces]
    widths = [sum(_TEXT if kind == "VARCHAR" else _NUMBER for kind in kinds) for kinds in columns]
    return min(WORK, BASE + numbers) + count * max(widths)


def of_previews() -> int:
    """Of previews: batches of a preview set, and an answer twice, as it is put together."""
    return HELD_BATCHES + 4 * MOST_BYTES


def of_top_k(resolved: Resolved[TopK]) -> int:
    groups = 1 if resolved.groups is None else len(resolved.groups.counts)
    found = min(resolved.question.k * groups, resolved.selection.count)
    needed = _of_layer(resolved) + 8 * _COLUMNS * resolved.selection.count + 64 * len(resolved.queries) * found
    if resolved.shares is not None:
        return needed + _of_shares(resolved)
    if resolved.directed is None:
        return needed
    # Of contributions: the scores of some queries, members, factors, and what they are multiplied to.
    entries = resolved.view.snapshot.entries(resolved.layer.name).count
    return needed + _work(resolved) + 8 * _COLUMNS * resolved.selection.count + 32 * entries


def of_distinct(question: TopK | GradientTopK, hits: int) -> int:
    """Of what tells the samples of so many hits apart."""
    return hits * (8 * _COLUMNS + _NUMBER * (len(question.distinct) + 1))


def of_group_sum(resolved: Resolved[GroupSum]) -> int:
    assert resolved.groups is not None, "a GroupSum has columns to group by"
    if resolved.question.target is not None and resolved.status is None:
        return of_contributions(resolved)
    groups, queries, entries = len(resolved.groups.counts), len(resolved.queries), resolved.selection.count
    absolute, answer = resolved.question.score == "abs", 8 * queries * groups
    if resolved.question.k is not None:
        # Sums of some queries are held at once, and what is kept of each.
        answer = min(answer, LARGEST + 8 * groups) + 24 * queries * min(resolved.question.k, groups)
    needed = _of_layer(resolved) + 8 * _COLUMNS * entries + 2 * answer
    if resolved.shares is not None:
        return needed + _of_shares(resolved)
    if resolved.directed is not None:
        needed += 8 * _COLUMNS * entries
        if not resolved.directed.shared:
            return needed + 8 * (min(BATCH, queries) + 2) * entries
    if many(resolved.layer.d_in, groups):
        # Scores of one batch, and what they are of one query, by row and by entry.
        return needed if absolute else needed + 8 * (min(BATCH, queries) + 2) * entries
    # Sums of keys; of absolute scores also what float32 may be off by, and what is asked again in float64.
    return needed + 2 * 8 * groups * resolved.layer.d_in + 4 * answer * absolute


def _of_shares(resolved: Resolved[TopK] | Resolved[GroupSum] | Resolved[Distribution]) -> int:
    """Of the factors of the outputs that are asked for, and the contributions of all entries to some queries."""
    layer, target, memory = resolved.layer, resolved.question.target, resolved.view.snapshot
    assert target is not None, "others have no contributions"
    outputs = layer.d_out if target.vectors is not None else 2
    factors = 8 * memory.steps * layer.weight_width * outputs
    entries = 8 * (_COLUMNS + min(BATCH, len(resolved.queries)) + 2) * memory.entries(layer.name).count
    return of_weights(resolved.view, layer) + min(2 * SHARES, 4 * factors) + entries


def of_distribution(resolved: Resolved[Distribution]) -> int:
    queries, entries = len(resolved.queries), resolved.selection.count
    # Products of one batch, and what is sorted and summed of one query.
    needed = _of_layer(resolved) + 8 * (_COLUMNS + min(BATCH, queries)) * entries
    needed += 2 * RANK_BYTES * queries * min(resolved.question.points, entries)
    if resolved.shares is not None:
        return needed + _of_shares(resolved)
    return needed if resolved.directed is None else needed + 8 * _COLUMNS * entries


def of_output(resolved: Resolved[Output]) -> int:
    scores = _work(resolved) if resolved.question.kernel == "softmax" else 0  # of rows that slots share
    weights = of_weights(resolved.view, resolved.layer)
    return weights + scores + 16 * len(resolved.queries) * resolved.layer.d_out


def of_contributions(resolved: Resolved[Contribution] | Resolved[GroupSum]) -> int:
    assert resolved.groups is not None, "a Contribution has columns to group by"
    layer, groups, queries = resolved.layer.stored, len(resolved.groups.counts), len(resolved.queries)
    made, answer = 8 * layer.d_out * (layer.weight_width + 1), 8 * queries * resolved.layer.d_out
    return (
        of_weights(resolved.view, resolved.layer)
        + SHARES
        + _of_factors(resolved.view, layer)
        + min(GROUPS, 6 * (groups + 3) * made)
        + 2 * (groups + 3) * answer
        + 8 * _COLUMNS * resolved.selection.count
    )


def of_placebo(resolved: Resolved[Placebo]) -> int:
    """Of the weights of each group of slots twice, and of what they make of some queries."""
    layer, groups = resolved.layer.stored, BUCKETS + MOST_SIBLINGS + 1
    made = 8 * layer.d_out * (layer.weight_width + 1)
    return (
        of_weights(resolved.view, resolved.layer)
        + _of_factors(resolved.view, layer)
        + 6 * groups * made  # weights, buffers, gradients and what an update makes of them
        + groups * resolved.selection.count
        + 8 * groups * min(len(resolved.queries), AT_ONCE) * resolved.layer.d_out
    )


def _of_factors(view: View, layer: Layer) -> int:
    """Of what is left of the gradients of all updates that have room, and of the scales that it is made of."""
    from dualform.query.weights.coefficients import weighs_no_slot  # scores need none of the rules

    if weighs_no_slot(view.snapshot, layer.parameters) is None:
        return 0
    return 3 * min(SHARES, 8 * view.snapshot.steps * layer.d_out * (layer.weight_width + 1))


def of_gradients(view: View, question: GradientTopK | GradientSum, examples: ExampleGradients) -> int:
    """Of the scores of some examples, groups and sums, and the examples' own rows of a layer in float64."""
    slots = sum(view.snapshot.count(space) for space in view.snapshot.spaces)
    rows = max((2 * (own.keys.size + own.errors.size) for own in examples.layers.values()), default=0)
    groups = slots if isinstance(question, GradientSum) else 0
    kept = min(question.k or groups, slots) * examples.count
    blocks = _blocks(view.snapshot.layers.values(), view.snapshot)
    return 2 * blocks + 8 * (_COLUMNS * slots + 4 * groups + rows + 3 * kept)


def of_weights(view: View, layer: Layer | None = None) -> int:
    """Of weights under a mask: all layers', or one's, with the layers that hold a parameter of it."""
    memory = view.snapshot
    asked = [*memory.layers.values()] if layer is None else view.holders(layer.stored.parameters) or [layer.stored]
    shapes = [own.d_out * (own.d_in + 1) for own in asked]
    entries = max((memory.count(own.space) for own in asked), default=0)
    # The model's own files are read whole, whichever layer is asked for, and one of them is in hand twice meanwhile.
    files = [mark.bytes for name, mark in memory.manifest.files.items() if name.startswith(WEIGHTS)]
    read = sum(files) + max(files, default=0)
    return _blocks(asked, memory) + read + 8 * (_COLUMNS * entries + _STATES * max(shapes, default=0) + 3 * sum(shapes))


def sql_limits(given: int) -> dict[str, int]:
    """What an engine that is given so many bytes gives to statements of SQL (Sql)."""
    return {"memory": min(MEMORY, max(64 << 20, given // 8)), "most_bytes": min(ANSWER, max(8 << 20, given // 32))}


def of_sql(sql: Sql) -> int:
    """What the child of a statement may take beside the tables, and its answer, in Arrow's form and as columns."""
    return sql.memory + 4 * sql.most_bytes


def _of_layer(resolved: Resolved[Any]) -> int:
    return _work(resolved) + min(HELD_BYTES, _rows_read(resolved))


def _work(resolved: Resolved[Any]) -> int:
    """Blocks of a layer's rows, and of their scores."""
    entries = resolved.view.snapshot.entries(resolved.layer.name).count
    return min(WORK, BASE + _rows_read(resolved) + 8 * len(resolved.queries) * entries)


def _rows_read(resolved: Resolved[Any]) -> int:
    """Bytes of all keys of the layer; of its values, too, where the question is about an output."""
    layer, keys_only = resolved.layer, resolved.directed is None and not isinstance(resolved.question, Output)
    width = layer.d_in if keys_only else layer.d_in + layer.d_out
    return 4 * width * resolved.view.snapshot.entries(layer.name).count


def _blocks(layers: Iterable[Layer], memory: Snapshot) -> int:
    """Blocks of rows that pass by, and rows that are held: no more than the largest of some layers has."""
    most = _row_bytes(layers, memory)
    return min(WORK, BASE + 2 * most) + min(HELD_BYTES, most)


def _row_bytes(layers: Iterable[Layer], memory: Snapshot) -> int:
    """Of all keys and values of the largest of some layers."""
    sizes = [memory.entries(own.stored.name).count * 4 * (own.stored.d_in + own.stored.d_out) for own in layers]
    return max(sizes, default=0)
