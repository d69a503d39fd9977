"""Which copy of its weights a product was computed with, where autocast made one of half precision, or they are of it.

The gradient of a product goes back through the node that made the copy: it is rounded to the copy's type there, and
added up in it with those of other products of the same copy. Whether there is such a node is seen in the graph of the
forward pass, so that nothing is taken for rounded that autocast leaves alone, and no more is said where other nodes
stand between, as of compiled code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from dualform.record.key_form import HALVED

_COPY = "ToCopyBackward0"
_PARAMETER = "AccumulateGrad"
_SUM = "AddBackward0"
"""A bias that is added behind the product."""
_OF_VIEWS = "T Transpose Permute View UnsafeView Alias Select Slice Split SplitWithSizes UnsafeSplit Unbind"
_VIEWS = frozenset((*(f"{name}Backward0" for name in _OF_VIEWS.split(" ")), "_IdentityBackward"))
"""Nodes through which each number of a gradient goes as it is; taps, too, where several layers share one product."""


def cast_of(parameters: Iterable[Tensor], output: Tensor) -> int | None:
    """The number of the copy, among those of one forward pass; None where the gradient of any of the parameters that
    ask for one does not go through a copy alone. `output`: of the product.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if output.dtype not in HALVED or output.grad_fn is None or not trained:
        return None
    found = _copies(output.grad_fn)
    copies = [found.get(id(parameter)) for parameter in trained]
    return None if None in copies else copies[0]


def _copies(node: Any) -> dict[int, int]:
    """By id, parameters of a product or its bias that are of half precision, or copied to it: the copy's number."""
    found: dict[int, int] = {}
    waiting: list[tuple[Any, bool, int | None]] = [(node, False, None)]
    while waiting:
        node, inside, copy = waiting.pop()
        name = node.name()
        if name.endswith(_PARAMETER):
            if copy is None and inside and node.variable.dtype in HALVED:
                copy = -id(node.variable)  # products of the parameter itself are added up in its type alike
            if copy is not None:
                found[id(node.variable)] = copy
            continue
        if name == _COPY and copy is None:
            copy = node._sequence_nr()
        elif name not in _VIEWS:
            if inside or copy is not None:
                continue  # what the product's input was computed from
            inside = name != _SUM
        waiting += [(child, inside, copy) for child, _ in node.next_functions if child is not None]
    return found
