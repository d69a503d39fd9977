"""A recorded layer: what the manifest says of it. Shapes: d_in and d_out of the layer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote


@dataclass(frozen=True)
class Parameter:
    """One parameter of the model, and the columns of a layer's [W | b], [d_out, d_in + 1], that it brings.

    Parameters that bring the same columns are added up, as the two biases of an LSTM are.
    """

    name: str
    """In the model's state dict."""
    start: int
    stop: int
    """One past the last column; the bias is column d_in."""


def affine(d_in: int, weight: str, bias: str | None) -> tuple[Parameter, ...]:
    """The parameters of a layer with one weight [d_out, d_in] and at most one bias [d_out]."""
    whole = Parameter(weight, 0, d_in)
    return (whole,) if bias is None else (whole, Parameter(bias, d_in, d_in + 1))


@dataclass(frozen=True)
class Layer:
    """One layer of the recorded model, under the name the model gives its module."""

    name: str
    d_in: int
    """Width of a key, without the 1 that stands for the bias."""
    d_out: int
    parameters: tuple[Parameter, ...]
    """Weights in the order of their columns, then biases."""
    space: str
    """What one slot stands for: "sample" or "token"."""
    repeats: bool
    """Whether the layer's inputs repeat (raw data), so that each distinct key is stored once."""
    values: bool
    """Whether error signals are stored."""
    keys: bool = True
    """Whether keys are stored; where they are not, a digest of each step's is."""
    reason: str = ""
    """Why values are not, where it is the kind of layer that has none."""
    dtype: str = "float32"
    """What the training computed its product in: float32 or bfloat16."""

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
        """Of `to_json`, or of a memory that names one `weight` and one `bias`, as the first ones did."""
        fields = dict(fields)
        if "weight" in fields:
            fields["parameters"] = affine(fields["d_in"], fields.pop("weight"), fields.pop("bias"))
        else:
            fields["parameters"] = tuple(Parameter(**parameter) for parameter in fields["parameters"])
        return cls(**fields)
