"""A view of a stored layer, as the manifest says it: some of the layer's outputs, asked by a name of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dualform.store.parameter import Range


@dataclass(frozen=True)
class LayerView:
    """Its keys are those of the layer, and so are its slots."""

    name: str
    """What stands behind the layer's name and a dot."""
    values: Range
    """Columns of the layer's values, the last one excluded."""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> LayerView:
        first, last = fields["values"]
        return cls(fields["name"], (first, last))
