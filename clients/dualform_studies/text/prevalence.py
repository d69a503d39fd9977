"""Whether what the paper sees in the passages of one query is so of other queries of the same form in the test text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dualform.answers import GroupSums
from dualform_studies.pages.folder import Report
from dualform_studies.text.attention import positions_of
from dualform_studies.text.forms import Cases, Form
from dualform_studies.text.prompts import CONTEXT
from dualform_studies.text.ranks import Standard, count_best
from dualform_studies.text.runs import Task
from dualform_studies.text.tokens import Tokens

_MOST = 12
"""Queries of a form: each costs a pass over all keys."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Queries of one form."""

    form: Form
    cases: Cases
    """Of the training text."""
    in_the_test_text: int
    """How many tokens of the test text are of the form."""
    asked: Sequence[Tokens]
    """What the network reads for each query, which is its last token: _MOST of them at most, evenly chosen."""


def samples_of(standards: Iterable[Standard], task: Task) -> list[Sample]:
    """One for each form that a token's own surroundings decide of; none for those that the test text does not have."""
    found = []
    for standard in standards:
        for form, cases in zip(standard.forms, standard.cases, strict=True):
            places = form.cases(task.test, task.corpus).places if not form.article else np.empty(0, dtype=np.int64)
            chosen = np.unique(np.linspace(0, len(places) - 1, min(_MOST, len(places))).round().astype(np.int64))
            asked = [task.test.ending(int(place), CONTEXT) for place in places[chosen]]
            if asked:
                found.append(Sample(form, cases, len(places), asked))
    return found


def prevalence_of(samples: Sequence[Sample], sums: GroupSums) -> list[Report]:
    """One entry for each sample; `sums` are those by position of all their queries, in order."""
    positions, rows = positions_of(sums), iter(sums.sums)
    told = []
    for sample in samples:
        of_ten = [count_best(positions, next(rows), sample.cases) for _ in sample.asked]
        told.append(
            {
                "table": sample.form.table,
                "claim": sample.form.claim,
                "in_the_test_text": sample.in_the_test_text,
                "of_ten": of_ten,
                "of_all": int(np.isin(positions, sample.cases.places).sum()),
            }
        )
    return told
