"""What labels are called, where the training said so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dualform.errors import DualformError
from dualform.methods import Answers

_NAMES = "SELECT dataset, label, name FROM labels"


@dataclass(frozen=True)
class LabelNames:
    by_dataset: Mapping[tuple[Any, Any], str] = field(default_factory=dict)

    def of(self, label: Any, dataset: Any = None) -> str:
        """The name of a label of a dataset, or the one that it has in all; empty where there is none, or several, or
        where it says no more than the number.
        """
        if label is None:
            return ""
        named = {name for (own, number), name in self.by_dataset.items() if number == label and dataset in (None, own)}
        name = named.pop() if len(named) == 1 else ""
        return "" if name == str(label) else name


def label_names(memory: Answers) -> LabelNames:
    """Empty where there are none, and where a server answers no SQL: numbers stand for themselves then."""
    try:
        rows = memory.sql(_NAMES)
    except DualformError:
        return LabelNames()
    return LabelNames({(row["dataset"], row["label"]): str(row["name"]) for row in rows})
