"""A recorded layer: what the manifest says of it. Shapes: d_in and d_out of the layer."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any
from urllib.parse import quote

from dualform.errors import BadInput, NotAMemory
from dualform.store.durable_files import checksum
from dualform.store.parameter import Parameter
from dualform.store.sources import FORMATS, Geometry, KeyFormat
from dualform.store.value_format import VALUE_SOURCES, ValueFormat

PRECISIONS = ("bfloat16", "float16", "float32")
"""What a layer is computed in, the coarsest first."""


_LONGEST_FOLDER = 236
"""Bytes of a folder's name, so that names of files that begin and end otherwise fit into 255."""


def layer_folder(name: str) -> str:
    """The name of a layer's folder: the layer's own, escaped where a file system could not hold it, or take it for
    another folder. That of a long name ends in the name's checksum.
    """
    quoted = quote(name, safe="")
    if len(quoted) > _LONGEST_FOLDER:
        return f"{quoted[:200]}%.{checksum(name.encode())}"
    return "%2E" * len(name) if name in (".", "..") else quoted or "%"


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
    """How its keys are stored, by the name of a format of sources/; docs/format.md has a table of them."""
    repeats: bool = False
    """Whether the layer's inputs repeat (raw data), so that each distinct key is stored once."""
    values: bool = True
    """Whether error signals are stored."""
    dtype: str = "float32"
    """What the training computed in: one of PRECISIONS."""
    reason: str = ""
    """Why values are not stored, where it is the kind of layer that has none."""
    geometry: Geometry = field(default_factory=dict, hash=False)
    """What the key source has to know beyond d_in, by name; integers."""
    groups: int = 1
    """Of how many blocks along its diagonal W consists, all of one size and in order. A weight then has the columns of
    one block, d_in / groups, and the blocks under one another.
    """
    batch_dim: int = 0
    """Which axis of its keys was the batch, in the training, where they had tokens."""

    value_source: str = "rows"
    """How its values are stored: one of VALUE_SOURCES."""
    deleted: int = 0
    """How many of its slots were taken out of the memory (deleted_samples.py)."""
    sampled: bool = False
    """Whether the recorder held a budget, so that its slots may be a sample (sampling.py)."""

    @property
    def stored(self) -> Layer:
        """The layer that is on disk: itself, unless it is a view."""
        return self

    @property
    def own_keys(self) -> slice:
        """The columns of the stored layer's keys that are its own."""
        return slice(0, self.d_in)

    @property
    def own_values(self) -> slice:
        """Likewise of values, and so the rows of its weights."""
        return slice(0, self.d_out)

    def log_name(self, block: str) -> str:
        """What logs call a block that the layer calls by this name."""
        return block

    @property
    def view_names(self) -> tuple[str, ...]:
        """What may be asked in place of the layer: each of its groups, by number (viewed_layer.py)."""
        numbers = map(str, range(self.groups if self.groups > 1 else 0))
        return tuple(f"{self.name}.{number}" if self.name else number for number in numbers)

    @property
    def weight_width(self) -> int:
        """Columns of a weight that has all of them."""
        return self.d_in // self.groups

    @cached_property
    def key_format(self) -> KeyFormat:
        """How its keys are stored. Raises BadInput for a layer whose keys have no such form."""
        if self.source not in FORMATS:
            raise BadInput(
                f"layer {self.name!r} has no key source {self.source!r}.", hint=f"Key sources: {', '.join(FORMATS)}."
            )
        try:
            return FORMATS[self.source](self.d_in, self.geometry)
        except (ValueError, TypeError) as error:
            raise BadInput(f"layer {self.name!r}: {error}", field="layers") from None

    @cached_property
    def value_format(self) -> ValueFormat:
        """How its values are stored."""
        return ValueFormat(self.value_source, self.d_out)

    @cached_property
    def keys(self) -> bool:
        """Whether keys can be read."""
        return bool(self.key_format.forms)

    @property
    def weights(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if parameter.start < self.d_in)

    @property
    def biases(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if parameter.start == self.d_in)

    @property
    def folder(self) -> str:
        """The folder's name: the layer's own, escaped where a file system could not hold it."""
        return layer_folder(self.name)

    def to_json(self) -> dict[str, Any]:
        """What the manifest says; what it does not say means what it did before there was such a thing."""
        said = {own.name: getattr(self, own.name) for own in fields(self)}
        said["forgotten"] = said.pop("deleted")  # as format 2 calls it
        said["parameters"] = [block.to_json() for block in self.parameters]
        later = {"geometry": {}, "groups": 1, "batch_dim": 0, "value_source": "rows", "forgotten": 0, "sampled": False}
        return {name: own for name, own in said.items() if name not in later or own != later[name]}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Layer:
        """The layer that `to_json` described. Raises NotAMemory for what only a later version can have written."""
        fields = {"deleted" if name == "forgotten" else name: own for name, own in fields.items()}
        unread = sorted(fields.keys() - cls.__dataclass_fields__.keys())
        geometry = fields.get("geometry", {})
        if fields["source"] not in FORMATS:
            unread.append(f"source {fields['source']!r}")
        elif geometry.keys() - FORMATS[fields["source"]].geometry_names:
            unread.append(f"geometry {', '.join(sorted(geometry))}")
        if fields.get("value_source", "rows") not in VALUE_SOURCES:
            unread.append(f"value source {fields['value_source']!r}")
        said = {name for block in fields["parameters"] for name in block}
        unread += sorted(said - Parameter.__dataclass_fields__.keys())
        if unread:
            raise NotAMemory(
                f"layer {fields['name']!r} has {', '.join(unread)}, which this version of dualform does not read.",
                hint="Upgrade dualform: pip install --upgrade dualform.",
            )
        given = {name: tuple(numbers) for name, numbers in geometry.items()}
        parameters = tuple(map(Parameter.from_json, fields["parameters"]))
        layer = cls(**{**fields, "parameters": parameters, "geometry": given})
        try:
            layer.key_format  # noqa: B018  asked for what it raises
        except BadInput as error:
            raise NotAMemory(error.message) from None
        return layer
