"""A recorded layer: what the manifest says of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote


@dataclass(frozen=True)
class Layer:
    """One linear layer of the recorded model, under the name the model gives its module."""

    name: str
    d_in: int
    """Width of a key, without the 1 that stands for the bias."""
    d_out: int
    weight: str
    """The weight's name in the model's state dict."""
    bias: str | None
    """The bias's name there; None for a layer without one."""
    grain: str
    """What one slot stands for: "sample" or "token"."""
    repeats: bool
    """Whether the layer's inputs repeat (raw data), so that each distinct key is stored once."""
    values: bool
    """Whether error signals are stored."""
    keys: bool = True
    """Whether keys are stored; where they are not, a digest of each step's is."""

    @property
    def folder(self) -> str:
        """The folder's name: the layer's own, escaped where a file system could not hold it."""
        return quote(self.name, safe="") or "%"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Layer:
        return cls(**fields)
