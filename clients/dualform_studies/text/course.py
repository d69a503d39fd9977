"""How the ranks of the paper's passages change as a training goes on, and where that would lead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp, log, log2

import numpy as np

from dualform_studies.pages.folder import Report
from dualform_studies.text.attention import Attention, Questions, positions_of
from dualform_studies.text.checkpoints import Checkpoint
from dualform_studies.text.ranks import Standard

_FITTED = 3
"""Checkpoints that a line is drawn through, at least."""


def course_of(
    asking: Questions,
    attention: Attention,
    standards: Mapping[str, Standard],
    checkpoints: Sequence[Checkpoint],
    of_a_pass: int,
) -> list[Report]:
    """One entry for each checkpoint, the last of which is the end of the training: what the paper's queries as of then
    find in the training up to then.
    """
    ends = [*attention.at_checkpoints, None] if asking.compared else [None] * len(checkpoints)
    told = []
    for checkpoint, answer in zip(checkpoints, ends, strict=True):
        tables = []
        for row, number in enumerate(asking.compared):
            if answer is None:
                positions, sums = attention.positions, attention.by_position.sums[asking.last[number]]
            else:
                positions, sums = positions_of(answer), answer.sums[row]
            standard = standards[asking.prompts[number].name]
            ranks = zip(standard.table.rows, standard.ranks(positions, sums), strict=True)
            tables.append(
                {
                    "table": standard.table.number,
                    "passages": [{"row": row.rank, "leads": row.leads, "rank": rank} for row, rank in ranks],
                    "forms": [form.claim for form in standard.forms],
                    "of_ten": standard.of_the_best(positions, sums),
                }
            )
        told.append(
            {
                "updates": checkpoint.updates,
                "passes": checkpoint.updates / of_a_pass,
                "perplexity": checkpoint.perplexity,
                "tables": tables,
            }
        )
    return told


def middle_ranks(course: Sequence[Report], table: int) -> list[tuple[int, float]]:
    """Updates, and the geometric mean of the ranks of the passages that lead in the paper's table, of the checkpoints
    that have read them."""
    found = []
    for entry in course:
        ranks = _ranks(entry, table)
        if ranks:
            found.append((int(entry["updates"]), exp(float(np.mean(np.log(ranks))))))
    return found


def _ranks(entry: Report, table: int) -> list[int]:
    passages = [passage for told in entry["tables"] if told["table"] == table for passage in told["passages"]]
    return [passage["rank"] for passage in passages if passage["leads"] and passage["rank"] is not None]


def tables_of(course: Sequence[Report]) -> list[int]:
    return [told["table"] for told in course[-1]["tables"]] if course else []


def extrapolations(course: Sequence[Report], updates: int) -> Iterator[str]:
    """One sentence for each table: where the ranks of its passages would be after so many updates, were they to go on
    as in the later half of the checkpoints. Nothing where the training has had as many.
    """
    if not course or course[-1]["updates"] >= updates:
        return
    for table in tables_of(course):
        ranks = middle_ranks(course, table)
        fitted = ranks[-max(_FITTED, len(ranks) // 2) :]
        if len(fitted) < _FITTED:
            yield f"Table {table}: too few checkpoints to say where the ranks of its passages go."
            continue
        slope, height = np.polyfit([log(u) for u, _ in fitted], [log(rank) for _, rank in fitted], 1)
        (first, rank_then), (last, rank_now) = fitted[0], fitted[-1]
        seen = (
            f"Table {table}: between {first:,} and {last:,} updates the geometric mean of the ranks of its passages "
            f"went from {rank_then:,.0f} to {rank_now:,.0f}"
        )
        if slope >= 0:
            yield f"{seen}. It does not fall, so nothing in it leads to the paper's ranks at {updates:,} updates."
            continue
        there = max(1.0, exp(height + slope * log(updates)))
        yield (
            f"{seen}, by a factor of {2**slope:.2f} with each doubling on a line through the logarithms. That line "
            f"comes to {there:,.0f} at the paper's {updates:,} updates, {log2(updates / last):.1f} doublings further: "
            "an extrapolation, not a measurement."
        )
