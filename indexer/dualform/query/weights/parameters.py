"""The whole network's parameters when only some slots speak, or as of an earlier step."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import EmptyMask, Inexact, MissingPackage
from dualform.query.view import Check, View
from dualform.query.weights.exactness import why_not
from dualform.query.weights.rebuilt import build, check_step

if TYPE_CHECKING:
    import torch


def state_dict(view: View, where: str | None, at_step: int | None, check: Check) -> dict[str, torch.Tensor]:
    """Every parameter and buffer under the model's own name: those of recorded layers rebuilt, in float32.

    The others stand as at the end of the training, with a UserWarning that names them where the question is not about
    the end. Raises Inexact where a recorded layer cannot be rebuilt, MissingPackage without torch.
    """
    tensor = _from_numpy()
    check_step(view, at_step)
    reasons = {name: why_not(view, layer, at_step) for name, layer in view.snapshot.layers.items()}
    if any(reasons.values()):
        listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason)
        raise Inexact(f"the network cannot be rebuilt. {listed}", hint="Ask single layers for their output instead.")
    arrays = dict(_recorded(view, where, at_step, check))
    others = {name: a for name, a in view.stored_weights("final").items() if name not in arrays}
    if others and (where is not None or at_step is not None):
        warnings.warn(f"not recorded, so they stand as at the end of the training: {', '.join(others)}.", stacklevel=3)
    order = view.stored_weights("initial")
    merged = {**others, **arrays}
    return {name: tensor(merged[name]) for name in [*order, *(n for n in merged if n not in order)]}


def _recorded(view: View, where: str | None, at_step: int | None, check: Check) -> dict[str, NDArray[Any]]:
    """The rebuilt parameters of the recorded layers."""
    selections = {layer.name: view.select(layer, where) for layer in view.snapshot.layers.values()}
    if where is not None and not any(selection.count for selection in selections.values()):
        raise EmptyMask(f"where leaves no slot: {where}", field="where")
    arrays: dict[str, NDArray[Any]] = {}
    for layer in view.snapshot.layers.values():
        rebuilt = build(view, layer, selections[layer.name], at_step, check)
        arrays |= {name: parameter.astype(np.float32) for name, parameter in rebuilt.parameters.items()}
    return arrays


def _from_numpy() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingPackage("torch is not installed.", hint="pip install 'dualform[record]' brings it.") from None
    return lambda array: torch.from_numpy(np.array(array))
