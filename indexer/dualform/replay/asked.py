"""One question to a training that is run again: what the first run already tells of its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.query import resolve
from dualform.query.groups import Groups
from dualform.query.view import View
from dualform.query.where.mask import Selection
from dualform.questions import GroupSum, TopK, as_by, as_queries
from dualform.store.layer import Layer

Question: TypeAlias = TopK | GroupSum


@dataclass(frozen=True, eq=False)
class Asked:
    """Slots and their columns stand in the first run's tables, so mask and groups are settled before a key is seen."""

    question: Question
    layer: Layer
    queries: NDArray[np.float32]
    """float32[n, d_in]."""
    selection: Selection
    groups: Groups | None
    """None where the question has no `by`."""

    slots_of: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    """From entries of the layer to slots of its space."""

    @property
    def absolute(self) -> bool:
        return self.question.score == "abs"


def ask(view: View, question: Question) -> Asked:
    """A question, resolved against the first run. Raises what an engine raises, and BadInput for another kind."""
    if not isinstance(question, TopK | GroupSum):
        raise BadInput(
            f"a replay answers no {type(question).__name__}.",
            hint="Ask TopK or GroupSum; outputs need a memory with keys and values.",
            field="questions",
        )
    question = replace(question, queries=as_queries(question.queries), by=as_by(question.by))
    layer = view.layer(question.layer)
    queries = resolve.vectors(view, layer, question.queries)
    selection = view.selection(layer, question.where)
    groups = view.groups(layer, selection, question.by) if question.by else None
    return Asked(question, layer, queries, selection, groups, view.snapshot.entries(layer.name).slots_of)
