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
        for recipient in LISTENING:
            output = recipient.by_hand(MatrixProduct(x, weight), name, output)
    return output
