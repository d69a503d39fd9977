"""Whether numbers that are looked up are of rows of the batch, or the same for all rows, as positions are.

Shapes: B rows, L tokens of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from dualform.record.signal import Signal

Leading = tuple[int, ...]


@dataclass(frozen=True)
class Lookup:
    """What one call tells, beside the others of its step."""

    shared: bool
    """Whether its slots are of no row, or cannot be told from such."""
    doubt: str = ""
    """What cannot be told, one sentence; empty where nothing is in doubt."""


def lookup_of(layer: str, own: Signal, others: Sequence[Signal], said: int | None) -> Lookup:
    """`others`: the calls of the step in all spaces whose rows are the batch's; `said`: B, where entries have rows."""
    leading, counts = own.leading, _row_counts(others, said)
    tells = [other.leading for other in others if not other.form.looks_up]
    if counts and not _may_have_rows(leading, counts, tells):
        return Lookup(True)
    if own.form.shared(own.keys, leading):
        one = 1 in leading[:2] and len(leading) > 1 and bool(counts) and all(1 in other[:2] for other in tells)
        return Lookup(False) if one else Lookup(True, _doubt(layer, leading, "its numbers are those of positions"))
    tokens = [other.leading for other in others if len(other.leading) > 1]
    square = any(leading == (other[1],) and (other[0] == other[1] or leading not in tells) for other in tokens)
    return Lookup(True, _doubt(layer, leading, "there are as many positions")) if square else Lookup(False)


def _row_counts(others: Sequence[Signal], said: int | None) -> set[int]:
    """What B may be; empty where nothing tells."""
    if said is not None:
        return {said}
    own = [other for other in others if not other.form.looks_up]
    deep = [set(other.leading[: 2 if other.form.batch_axis is None else 1]) for other in own if len(other.leading) > 1]
    flat = {other.leading[0] for other in own if len(other.leading) == 1}
    if not deep:
        return flat
    agreed = set.intersection(*deep)
    return (agreed & flat) or agreed or set.union(*deep) | flat


def _may_have_rows(own: Leading, counts: set[int], others: Sequence[Leading]) -> bool:
    """Whether numbers of some dimensions may be of rows of the batch."""
    if any(prod(own) == prod(other) for other in others if len(own) > 1 or len(other) > 1):
        return True
    if len(own) == 1:
        return own[0] in counts
    once = own[0] == 1 and 1 not in counts and not any(1 in other[:2] for other in others)
    return not once and not counts.isdisjoint(own[:2])


def _doubt(layer: str, leading: Leading, why: str) -> str:
    what = "one number of each row or of each position" if len(leading) == 1 else "rows of the batch"
    space = "sample" if len(leading) == 1 else "token"
    return (
        f"whether layer {layer!r} saw {what} cannot be told from {list(leading)}: {why}. The rows of its slots "
        f"are unknown. If it sees rows, pass spaces={{{layer!r}: {space!r}}}; otherwise, routed=[{layer!r}]."
    )
