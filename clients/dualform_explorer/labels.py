"""What labels are called, where the training said so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dualform.answers import MemoryInfo
from dualform.errors import DualformError
from dualform.methods import Answers
from dualform_explorer.complete_columns import complete_columns

_NAMES = "SELECT dataset, label, name FROM labels"


@dataclass(frozen=True)
class LabelNames:
    by_dataset: Mapping[tuple[Any, Any], str] = field(default_factory=dict)
    datasets: frozenset[str | None] = frozenset()
    """Those of the memory, with None where beside them some slots have no dataset; empty where none has any."""

    def of(self, label: Any, *dataset: Any) -> str:
        """The name of a label of a dataset, or without one that which it has in all; empty where there is none, or
        several, or where it says no more than the number, and where a dataset has no names: its labels may mean others.
        """
        known = {own for own, _ in self.by_dataset}
        asked = {*dataset} if dataset and self.datasets else self.datasets or known
        if label is None or not asked <= known:
            return ""
        named = {name for (own, number), name in self.by_dataset.items() if number == label and own in asked}
        name = named.pop() if len(named) == 1 else ""
        return "" if name == str(label) else name


def label_names(memory: Answers, info: MemoryInfo) -> LabelNames:
    """Empty where there are none, and where a server answers no SQL: numbers stand for themselves then."""
    try:
        rows = memory.sql(_NAMES)
    except DualformError:
        return LabelNames()
    datasets: set[str | None] = {*info.datasets}
    if datasets and "dataset" not in complete_columns(info):
        datasets.add(None)
    return LabelNames({(row["dataset"], row["label"]): str(row["name"]) for row in rows}, frozenset(datasets))
