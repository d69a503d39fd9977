"""The tap of a matrix that a module multiplies by itself, as `x @ self.w` does, or that `dualform.tap` is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from dualform.record.taps.embedding import RowNumberForm
from dualform.record.taps.matrix_block import MatrixBlock, block_of, is_of
from dualform.record.taps.product import MatrixProduct, saved_key
from dualform.record.taps.tap import Call, Listener, Tap
from dualform.record.taps.watcher import Watcher
from dualform.store.parameter import Parameter


class FreeTap(Tap):
    """One matrix, known since a product with it was seen. Whoever sees its products says so with `multiplied`."""

    def __init__(
        self, name: str, parameter: str, tensor: Tensor, block: MatrixBlock, looks_up: bool, values: bool
    ) -> None:
        """`parameter`: the name of `tensor` in the state dict, of which the layer's weight is a block."""
        super().__init__(name, values)
        sides = (block.rows[1] - block.rows[0], block.columns[1] - block.columns[0])
        self.d_out, self.d_in = sides[::-1] if block.transposed else sides
        place = Parameter(parameter, 0, self.d_in, block.rows, block.transposed, block.columns, block.leading)
        self.parameters = {place.within(tensor.shape): tensor}
        self.block = block
        self.key_form = RowNumberForm(self.d_in) if looks_up else self.key_form
        self._padding: int | None = None

    def add_bias(self, bias: Tensor, own: Mapping[str, Tensor]) -> None:
        """The products add a vector: the layer's bias, where it is one of these parameters or a range of one."""
        for path, tensor in own.items():
            if tensor.dim() == 1 and tensor.requires_grad and is_of(bias, tensor) and bias.shape == (self.d_out,):
                start = int(bias.storage_offset() - tensor.storage_offset())
                place = Parameter(path, self.d_in, self.d_in + 1, (start, start + self.d_out))
                self.parameters[place.within(tensor.shape)] = tensor

    def attach(self, listener: Listener) -> None:
        """Nothing is to be done: the watcher of its module is attached by itself."""

    def detach(self) -> None:
        """As `attach`."""

    def stands_for(self, matrix: Tensor) -> bool:
        """Whether a matrix is this layer's."""
        (tensor, *_) = self.parameters.values()
        return block_of(matrix, tensor) == self.block

    def multiplied(self, listener: Listener, product: MatrixProduct, output: Tensor) -> Tensor:
        """Report a product. Returns what the network goes on with."""
        if product.looks_up:
            key, self._padding = product.key.detach(), product.padding
        else:
            key = saved_key(product.key).to(output.dtype)
        raw = not product.looks_up and not product.key.requires_grad
        (output,) = self.passed(listener, Call(key, (output,), raw=raw, argument=product.key))
        return output

    def error_of(self, key: Tensor, kept: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
        (error,) = gradients
        assert error is not None
        return error if self._padding is None else error.masked_fill((key == self._padding).unsqueeze(-1), 0.0)


class Finder(Protocol):
    """Who knows the layers of free matrices, and hears of new ones."""

    closed: bool
    """Whether no new ones are taken any more."""

    def tap_of(
        self, path: str, parameter: Tensor, block: MatrixBlock, product: MatrixProduct, own: Mapping[str, Tensor]
    ) -> FreeTap | None:
        """The tap of a block of the parameter of that name; None where it is no layer. `own`: its module's parameters,
        of which one may be the product's bias.
        """

    def used(self, path: str, function: str) -> None:
        """The parameter of that name went into something that is no product with a matrix."""


class MatrixWatcher(Watcher):
    """A module that holds free matrices."""

    def __init__(
        self, module: nn.Module, free: Mapping[str, Tensor], own: Mapping[str, Tensor], finder: Finder
    ) -> None:
        """`free`: by name in the state dict, the parameters that may be layers; `own`: all that the module holds."""
        super().__init__(module)
        self.free = free
        self._own, self._finder = own, finder

    def multiplied(self, listener: Listener, product: MatrixProduct, output: Tensor) -> Tensor | None:
        for path, parameter in self.free.items():
            if not is_of(product.weight, parameter):
                continue
            block = block_of(product.weight, parameter)
            if block is None or any(is_of(product.key, other) for other in self._own.values()):
                what = (
                    "a part of it that is not a matrix of its rows and columns"
                    if block is None
                    else "another parameter"
                )
                self._finder.used(path, f"a product with {what}")
                return None
            tap = self._finder.tap_of(path, parameter, block, product, self._own)
            return output if tap is None else tap.multiplied(listener, product, output)
        return None

    def used(self, name: str, args: tuple[Any, ...], output: Any) -> None:
        if self._finder.closed:
            return
        for tensor in _tensors(args):
            for path, parameter in self.free.items():
                if is_of(tensor, parameter):
                    self._finder.used(path, name)


def _tensors(args: Sequence[Any]) -> Iterator[Tensor]:
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from _tensors(arg)
