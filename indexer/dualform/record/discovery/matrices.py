"""Matrices that modules multiply by themselves: which of them are layers, also in stacks such as experts.

Stacks of matrices in one parameter, as those of experts, whose rows the model chooses.

A layer of a stack sees rows of the batch, or its tokens, where each call is as large as those of other layers; where
calls have other sizes, or some rows of a tensor were seen to be taken, the model chose. Then one member's matrices
share a space of that member's name.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TypeAlias

from torch import Tensor, nn

from dualform.errors import RecordingError
from dualform.record.discovery.layers import FrozenLayers, batch_dim_of
from dualform.record.layout import Signal, why_not_numbers
from dualform.record.lineage import Lineage
from dualform.record.setup.optimizers import Owners
from dualform.record.setup.plan import check_blocks
from dualform.record.slots.spaces import own_name
from dualform.record.slots.step_record import StepRecord
from dualform.record.taps import Tap
from dualform.record.taps.matrix import LOOKED_UP, FreeTap, tap_of_memory
from dualform.record.taps.watcher import MatrixBlock, MatrixProduct, block_of, is_of
from dualform.store.layer import Layer, Parameter

_ONE_KERNEL = (
    "one kernel computes all its products, which hides them: compute them one by one, as transformers does "
    "with experts_implementation='eager'"
)
_TELL_NOTHING = frozenset(
    ("__get__", "__getitem__", "size", "dim", "numel", "view", "transpose", "permute", "detach", "is_inference")
) | {"storage_offset", "stride", "untyped_storage"}
_COPIES = frozenset(("reshape", "contiguous", "clone", "to", "float", "double", "type"))


class MatrixUses:
    """Of the parameters of one model, by name, as functions of torch were called with them."""

    def __init__(self) -> None:
        self._functions: dict[str, set[str]] = {}

    def add(self, parameter: str, function: str) -> None:
        if function not in _TELL_NOTHING:
            self._functions.setdefault(parameter, set()).add(function)

    def __contains__(self, parameter: str) -> bool:
        """Whether any use of it was seen."""
        return parameter in self._functions

    def why_no_layer(self, parameter: str) -> str:
        """Of one that was in no product with a matrix."""
        functions = self._functions.get(parameter, set())
        if {"grouped_mm", "_grouped_mm"} & functions:
            return _ONE_KERNEL
        if functions and functions <= _COPIES:
            return f"{', '.join(sorted(functions))} may copy it, and products with a copy are not seen"
        if "add" in functions:
            return "it is added, not multiplied"
        if functions:
            into = ", ".join(sorted(functions - _COPIES))
            return f"it goes into {into}, not into a matrix product that the recorder can see"
        return "no product with it was seen in the first step; products in compiled code are never seen"


def blocks_of(path: str, parameter: Tensor, block: MatrixBlock) -> dict[str, MatrixBlock]:
    """By layer, the block; of a stack of matrices, of which a product was seen with one, those of all."""
    height = parameter.shape[-2]
    one = parameter.dim() > 2 and block.leading == parameter.dim() - 1 and block.columns == (0, parameter.shape[-1])
    if one and block.rows[0] % height == 0 and block.rows[1] - block.rows[0] == height:
        numbers = product(*map(range, parameter.shape[:-2]))
        return {
            f"{path}[{', '.join(map(str, own))}]": replace(block, rows=(number * height, (number + 1) * height))
            for number, own in enumerate(numbers)
        }
    place = Parameter(path, 0, 0, block.rows, block.transposed, block.columns, block.leading)
    return {place.within(parameter.shape).block_name: block}


def routed_spaces(stacks: Mapping[str, Sequence[str]], record: StepRecord) -> dict[str, str]:
    """Layer -> space, of the stacks whose rows the model chooses, by what was received in a first step.

    `stacks`: by parameter, its layers in order.
    """
    calls = dict(record.leading())
    members = {layer for layers in stacks.values() for layer in layers}
    known = {size for layer, sizes in calls.items() if layer not in members for size in sizes}
    if record.metadata.rows is not None:
        known.add((record.metadata.rows,))
    chosen = {
        parameter: layers
        for parameter, layers in stacks.items()
        if any(_is_chosen(signal) for layer in layers for signal in record.calls(layer))
        or (known and not known.issuperset(size for layer in layers for size in calls.get(layer, ())))
    }
    found: dict[str, str] = {}
    for parameter, layers in chosen.items():
        module = parameter.rpartition(".")[0] or parameter
        beside = [other for other in chosen if (other.rpartition(".")[0] or other) == module]
        alike = all([calls.get(layer) for layer in chosen[other]] == [calls.get(x) for x in layers] for other in beside)
        for number, layer in enumerate(layers):
            found[layer] = own_name(f"{module}_{number}" if alike else layer, set())
    return found


def _is_chosen(signal: Signal) -> bool:
    return isinstance(signal.rows, Lineage) and not signal.rows.steady


Place: TypeAlias = tuple[str, MatrixBlock, bool]
"""Name of a layer's parameter, block of it, and whether rows are looked up."""


class FreeTaps:
    """Of one model, with the reasons why parameters are no layers."""

    def __init__(
        self, model: nn.Module, owners: Owners, frozen: FrozenLayers, wanted: Callable[[str], bool], values: bool
    ) -> None:
        """`wanted`: whether a layer of that name is to be recorded; `values`: with its error signals."""
        self._model, self._owners, self._frozen = model, owners, frozen
        self._wanted, self._values = wanted, values
        self._modules = dict(model.named_modules())
        self.skipped: dict[str, str] = {}
        """By parameter, why it is no layer."""
        self.recalled: dict[str, FreeTap] = {}
        """Layers of a training that is resumed, by name."""
        self.shown: dict[Place, FreeTap | None] = {}
        """None for what is no layer."""
        self.told: dict[str, FreeTap | None] = {}
        """By the name that `dualform.tap` was told; None for what is no layer."""
        self.taken: set[str] = set()
        """Names of layers, those of other taps among them."""

    def recall(self, layer: Layer, trained: Mapping[str, Tensor], watched: Container[str]) -> FreeTap | None:
        """A layer as a memory names it; None where the model has it no more. `trained`: the parameters that train;
        `watched`: names of those of which products are seen.
        """
        tap = tap_of_memory(layer, trained, self._values)
        if tap is None:
            return None
        (path, *_) = (place.name for place in tap.parameters)
        tap.batch_dim = batch_dim_of(self._modules, path)
        self.recalled[layer.name] = self.told[layer.name] = tap
        if path in watched and _is_plain(layer.name, path, tap.block, trained[path]):
            self.shown[path, tap.block, layer.source == LOOKED_UP] = tap
        for place in tap.parameters:
            self.skipped.pop(place.name, None)
        return tap

    def show(
        self, path: str, parameter: Tensor, block: MatrixBlock, product: MatrixProduct, own: Mapping[str, Tensor]
    ) -> None:
        """A product with a block was seen that has no tap; `own`: as Finder says."""
        stack = blocks_of(path, parameter, block)
        for plain, each in stack.items():
            name = next(own for own in (plain, *(f"{plain}.{n}" for n in range(2, 99))) if own not in self.taken)
            self.taken.add(name)
            tap = FreeTap(name, path, parameter, each, product.looks_up, self._values)
            tap.batch_dim = batch_dim_of(self._modules, path)
            self.shown[path, each, product.looks_up] = tap
            if product.bias is not None and len(stack) == 1:
                tap.add_bias(product.bias, own)

    def tell(self, name: str, weight: Tensor) -> None:
        """Products with this matrix are the layer of this name, which no other has. It gets no tap where the matrix is
        no block of a parameter that is trained here.
        """
        self.taken.add(name)
        self.told[name] = None
        for path, parameter in self._model.named_parameters():
            if is_of(weight, parameter):
                block = block_of(weight, parameter)
                other = why_not_numbers([("type", parameter)])
                why = self._owners.untrained([parameter], "its matrix")
                if block is not None and not (why or other):
                    self.told[name] = FreeTap(name, path, parameter, block, False, self._values)
                    return
                if why:
                    self._frozen.add(name, [parameter], why)
                self.skipped[name] = why or other or f"its matrix is not a block of {path}"
                return
        self.skipped[name] = "its matrix is neither a parameter of the model nor a view of one"

    @property
    def stacks(self) -> dict[str, list[str]]:
        """By parameter, the layers of those that hold several matrices."""
        found: dict[str, list[str]] = {}
        for (path, block, _), tap in self.shown.items():
            if tap is not None and block.leading > 1 and tap.name != path:
                found.setdefault(path, []).append(tap.name)
        return found

    def layers(self, others: Sequence[Tap]) -> list[FreeTap]:
        """Those that were not recalled, once all are known. What is no layer has no tap from now on.

        `others`: all other taps of the model.
        """
        layers: list[FreeTap] = []
        for path, every in self._by_parameter().items():
            found = [tap for tap in every if tap.name not in self.recalled]
            if why := self._why_not(found, [*others, *layers]):
                self._drop(path, found, why)
                continue
            for name in {place.name for tap in found for place in tap.parameters}:
                self.skipped.pop(name, None)
            for tap in found:
                if self._wanted(tap.name):
                    layers.append(tap)
                else:
                    self._drop(tap.name, [tap], "layers= leaves it out")
        return layers

    def _by_parameter(self) -> dict[str, list[FreeTap]]:
        found: dict[str, list[FreeTap]] = {}
        for tap in (*self.shown.values(), *self.told.values()):
            if tap is not None:
                found.setdefault(next(iter(tap.parameters)).name, []).append(tap)
        return found

    def _why_not(self, found: Sequence[FreeTap], others: Sequence[Tap]) -> str:
        try:
            check_blocks(self._model, [*others, *found])
        except RecordingError as error:
            return error.message.rstrip(".")
        return ""

    def _drop(self, name: str, taps: Sequence[FreeTap], why: str) -> None:
        self.skipped[name] = why
        self.shown = {place: None if tap in taps else tap for place, tap in self.shown.items()}
        self.told = {told: None if tap in taps else tap for told, tap in self.told.items()}


def _is_plain(name: str, path: str, block: MatrixBlock, parameter: Tensor) -> bool:
    """Whether a layer's name is that of its block, as products that were seen have it; else it was told by hand."""
    (plain,) = (known for known, own in blocks_of(path, parameter, block).items() if own == block)
    return name == plain or name.startswith(f"{plain}.")
