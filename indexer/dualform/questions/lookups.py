"""Questions about what a memory holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Columns, MemoryInfo, Previews, QuerySet, Reconstructions
from dualform.errors import BadInput
from dualform.questions.arguments import as_ids, check_layer, shown
from dualform.questions.question import Question


@dataclass(frozen=True)
class Inventory(Question[MemoryInfo]):
    """The layers, slots, datasets, columns and query sets of a memory."""


@dataclass(frozen=True, eq=False)
class SlotLookup(Question[Columns]):
    """The columns of some slots, in the order of `ids`."""

    ids: NDArray[np.int64]
    """int64[n]."""
    space: str | None = None
    """The slot space; None if the memory has only one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", as_ids(self.ids))


@dataclass(frozen=True)
class SqlStatement(Question[Columns]):
    """The rows of one SELECT over slots, steps, and the other tables."""

    text: str


@dataclass(frozen=True)
class QuerySetLookup(Question[QuerySet]):
    """A stored query set, with the queries of `layer` if it is given."""

    name: str
    layer: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise BadInput(
                f"name must be the name of a query set, not {shown(self.name)}.",
                hint='For example "test".',
                field="name",
            )
        if self.layer is not None:
            check_layer(self.layer)


MOST_SAMPLES = 1024
"""The most samples whose previews can be asked for at once."""


@dataclass(frozen=True, eq=False)
class PreviewLookup(Question[Previews]):
    """The previews of some samples of a dataset, or of some examples of a query set, in the order of `samples`.

    Raises BadInput for more than 1,024 samples, and for both a dataset and a query set.
    """

    samples: NDArray[np.int64]
    """int64[n]: the column `sample` of slots or, with `query_set`, numbers of examples from 0."""
    dataset: str | None = None
    """The name of the dataset; None for samples recorded without one."""
    query_set: str | None = None
    """The name of the query set, in place of a dataset."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", as_ids(self.samples, "samples"))
        if len(self.samples) > MOST_SAMPLES:
            raise BadInput(
                f"samples must have at most {MOST_SAMPLES:,} entries, not {len(self.samples):,}.",
                hint=f"Pass {MOST_SAMPLES:,} of them at a time.",
                field="samples",
            )
        if self.dataset is not None and self.query_set is not None:
            raise BadInput(
                "dataset and query_set cannot be combined.", hint="Pass only one of them.", field="query_set"
            )
        for name in ("dataset", "query_set"):
            if not isinstance(given := getattr(self, name), str | None):
                raise BadInput(f"{name} must be a name, not {shown(given)}.", field=name)


@dataclass(frozen=True)
class Verification(Question[Reconstructions]):
    """The reconstruction error of each layer at the end of the training. It reads all keys and values."""
