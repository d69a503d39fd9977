"""`dualform.tap`: a product in a forward pass of one's own that is to be a layer of a name.

Shapes: d_in and d_out of the layer.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.compiler import is_compiling
from torch.nn.functional import linear

from dualform.errors import BadInput
from dualform.record.taps.product import MatrixProduct
from dualform.record.taps.watcher import hidden


class Recipient(Protocol):
    """Who hears of such products."""

    def by_hand(self, product: MatrixProduct, name: str, output: Tensor) -> Tensor:
        """What the network goes on with in place of `output`."""


LISTENING: list[Recipient] = []
"""Of the recorders that are open in this process."""


def tap(x: Tensor, weight: Tensor, name: str) -> Tensor:
    """The product `x @ weight.T`, recorded as the layer `name` by every recorder that is open on the weight's model.

    `x` [..., d_in]; `weight` [d_out, d_in] is a parameter of the model or a part of one, as `self.weight[3]`, `.T` or
    rows of it. Returns [..., d_out], what `torch.nn.functional.linear(x, weight)` returns, and is that alone where no
    recorder is open, and in what torch.compile compiles. A layer whose weight is anything else is listed in
    `recorder.skipped`, with the reason.
    """
    if is_compiling():
        return linear(x, weight)
    if not isinstance(name, str) or (not name.isascii() and name.encode(errors="ignore").decode() != name):
        raise BadInput(f"{name!r} cannot name a layer.", hint="Give a text of valid characters.", field="name")
    with hidden():
        output = linear(x, weight)
        for recipient in LISTENING:
            output = recipient.by_hand(MatrixProduct(x, weight), name, output)
    return output
