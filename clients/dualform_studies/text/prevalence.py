"""Whether what the paper sees in the passages of one query is so of other queries of the same form in the test text.

The paper's own query is not among the others, where it was taken from the test text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform_studies.pages.folder import Report
from dualform_studies.text.attention import Attention
from dualform_studies.text.forms import Cases, Form
from dualform_studies.text.prompts import CONTEXT, Prompt
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
    """How many tokens of the test text are of the form, the paper's own query left out."""
    asked: Sequence[Tokens]
    """What the network reads for each query, which is its last token: _MOST of them at most, evenly chosen, and none
    where the test text has none."""


def samples_of(prompts: Iterable[Prompt], standards: Mapping[str, Standard], task: Task) -> list[Sample]:
    """One for each form of a prompt that comes from the paper, where a token's own surroundings decide of the form."""
    found = []
    for prompt in prompts:
        if prompt.published is None:
            continue
        own = prompt.place if prompt.published.origin == "test" else None
        standard = standards[prompt.name]
        for form, cases in zip(standard.forms, standard.cases, strict=True):
            if not form.article:
                places = form.cases(task.test, task.corpus).places
                places = places[places != own] if own is not None else places
                asked = [task.test.ending(int(place), CONTEXT) for place in _evenly(places)]
                found.append(Sample(form, cases, len(places), asked))
    return found


def _evenly(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[_MOST] or fewer of int64[n], from the first to the last."""
    return places[np.unique(np.linspace(0, len(places) - 1, min(_MOST, len(places))).round().astype(np.int64))]


def asked_of(samples: Iterable[Sample]) -> list[Tokens]:
    """What the network reads for all of them, in order."""
    return [tokens for sample in samples for tokens in sample.asked]


def prevalence_of(samples: Sequence[Sample], attention: Attention) -> list[Report]:
    """One entry for each sample; `attention` has the sums by position of all their queries, in order."""
    positions = attention.positions
    rows = iter(() if attention.of_others is None else attention.of_others.sums)
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
