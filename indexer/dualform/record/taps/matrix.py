"""Matrices that are no module's weight: those that a module multiplies by itself, and those given to `dualform.tap`.

`dualform.tap`: a product in a forward pass of one's own that is to be a layer of a name.

Shapes: d_in and d_out of the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor
from torch.compiler import is_compiling
from torch.nn.functional import linear

from dualform.errors import BadInput
from dualform.record.taps.embedding import RowNumberForm
from dualform.record.taps.tap import Call, Listener, Tap
from dualform.record.taps.watcher import MatrixBlock, MatrixProduct, block_of, hidden, is_of, saved_key
from dualform.store.layer import Layer, Parameter, as_matrix


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


LOOKED_UP = "row numbers"
"""The key source of a matrix whose rows are looked up."""


def tap_of_memory(layer: Layer, tensors: Mapping[str, Tensor], values: bool) -> FreeTap | None:
    """The tap of a layer as it was recorded before, by the parameters of the model; None where one of them is not there
    any more, or not as it was.
    """
    if not layer.parameters or any(place.name not in tensors for place in layer.parameters):
        return None
    weight, *biases = layer.parameters
    tensor = tensors[weight.name]
    tap = FreeTap(layer.name, weight.name, tensor, _block(weight, tensor), layer.source == LOOKED_UP, values)
    tap.parameters |= {place: tensors[place.name] for place in biases}
    return tap if tuple(tap.parameters) == layer.parameters else None


def _block(place: Parameter, tensor: Tensor) -> MatrixBlock:
    """With the ranges that a manifest leaves out where they are all of the parameter."""
    height, width = as_matrix(tensor.shape, place.leading)
    return MatrixBlock(place.rows or (0, height), place.columns or (0, width or 1), place.transposed, place.leading)


BY_HAND: list[Callable[[MatrixProduct, str, Tensor], Tensor]] = []
"""Of the recorders that are open in this process: told of a product, its name and its output, each says what the
network goes on with.
"""


def tap(x: Tensor, weight: Tensor, name: str) -> Tensor:
    """Compute `x @ weight.T`, and let an open recorder record it as the layer `name`.

    - `x`: [..., d_in].
    - `weight`: [d_out, d_in], a parameter of the model or a part of one, such as `self.weight[3]`, `.T` or a range of
      rows.

    Returns [..., d_out], the same as `torch.nn.functional.linear(x, weight)`. Without an open recorder, and in code
    that torch.compile compiles, it does nothing else. If `weight` is anything else, the layer is listed in
    `recorder.skipped`. Raises BadInput for a name that is not valid text.
    """
    if is_compiling():
        return linear(x, weight)
    if not isinstance(name, str) or (not name.isascii() and name.encode(errors="ignore").decode() != name):
        raise BadInput(
            f"{name!r} cannot name a layer.", hint="Pass valid Unicode text that is not empty.", field="name"
        )
    with hidden():
        output = linear(x, weight)
        for passed in BY_HAND:
            output = passed(MatrixProduct(x, weight), name, output)
    return output
