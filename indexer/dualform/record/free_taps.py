"""The taps of a model's free matrices, however they became known, and which of them are layers."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TypeAlias

from torch import Tensor, nn

from dualform.errors import RecordingError
from dualform.record.batch_first import batch_dim_of
from dualform.record.blocks import check_blocks
from dualform.record.frozen_layers import FrozenLayers
from dualform.record.key_form import why_not_numbers
from dualform.record.owners import Owners
from dualform.record.stacks import blocks_of
from dualform.record.taps import Tap
from dualform.record.taps.free_matrix import FreeTap
from dualform.record.taps.matrix_block import MatrixBlock, block_of, is_of
from dualform.record.taps.product import MatrixProduct
from dualform.record.taps.tap_of_memory import LOOKED_UP, tap_of_memory
from dualform.store.layer import Layer

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
