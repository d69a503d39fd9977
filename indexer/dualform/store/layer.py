"""A recorded layer: what the manifest says of it. Shapes: d_in and d_out of the layer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

from dualform.errors import NotAMemory
from dualform.store.parameter import Parameter

SOURCES = ("rows", "none")
"""The key sources that this version reads."""


def affine(d_in: int, weight: str, bias: str | None) -> tuple[Parameter, ...]:
    """The parameters of a layer with one weight [d_out, d_in] and at most one bias [d_out]."""
    whole = Parameter(weight, 0, d_in)
    return (whole,) if bias is None else (whole, Parameter(bias, d_in, d_in + 1))


@dataclass(frozen=True)
class Layer:
    """One layer of the recorded model, under the name the model gives its module."""

    name: str
    space: str
    """The slot space that its slots belong to."""
    d_in: int
    """Width of a key, without the 1 that stands for the bias."""
    d_out: int
    parameters: tuple[Parameter, ...]
    """Weights in the order of their columns, then biases."""
    source: str = "rows"
    """Where its keys come from: "rows" that are stored, or "none": recorded with keys=False, a digest a step."""
    repeats: bool = False
    """Whether the layer's inputs repeat (raw data), so that each distinct key is stored once."""
    values: bool = True
    """Whether error signals are stored."""
    dtype: str = "float32"
    """What the training computed in: "float32" or "bfloat16"."""
    reason: str = ""
    """Why values are not stored, where it is the kind of layer that has none."""

    @property
    def keys(self) -> bool:
        """Whether keys can be read."""
        return self.source != "none"

    @property
    def weights(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if parameter.start < self.d_in)

    @property
    def biases(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if parameter.start == self.d_in)

    @property
    def folder(self) -> str:
        """The folder's name: the layer's own, escaped where a file system could not hold it."""
        return quote(self.name, safe="") or "%"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Layer:
        """The layer that `to_json` described. Raises NotAMemory for what only a later version can have written."""
        unread = sorted(fields.keys() - cls.__dataclass_fields__.keys())
        if fields["source"] not in SOURCES:
            unread.append(f"source {fields['source']!r}")
        said = {name for block in fields["parameters"] for name in block}
        unread += sorted(said - Parameter.__dataclass_fields__.keys())
        if unread:
            raise NotAMemory(
                f"layer {fields['name']!r} has {', '.join(unread)}, which this version of dualform does not read.",
                hint="Upgrade dualform: pip install --upgrade dualform.",
            )
        return cls(**{**fields, "parameters": tuple(map(Parameter.from_json, fields["parameters"]))})
