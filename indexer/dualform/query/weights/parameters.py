"""The whole network's parameters when only some slots speak, or as of an earlier step."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import EmptyMask, Inexact, MissingPackage
from dualform.query.view import Check, View
from dualform.query.weights.exactness import require
from dualform.query.weights.rebuilt import check_step, rebuild

if TYPE_CHECKING:
    import torch


def state_dict(
    view: View,
    where: str | Mapping[str, str] | None,
    at_step: int | None,
    allow_inexact: bool,
    check: Check,
) -> dict[str, torch.Tensor]:
    """Every parameter and buffer under the model's own name: those of recorded layers rebuilt, in float32.

    `where`: of every space, or by space; spaces that are not named stay whole. The other parameters stand as at the end
    of the training, with a UserWarning that names them where the question is not about the end. Raises Inexact where a
    recorded layer cannot be rebuilt well enough, MissingPackage without torch.
    """
    tensor = _from_numpy()
    check_step(view, at_step)
    _require_all(view, at_step, allow_inexact)
    arrays = _recorded(view, where, at_step, allow_inexact, check)
    arrays |= {name: arrays[known] for name, known in _other_names(view, arrays).items()}
    others = {name: a for name, a in view.stored_weights("final").items() if name not in arrays}
    if others and (where is not None or at_step is not None):
        warnings.warn(f"not recorded, so they stand as at the end of the training: {', '.join(others)}.", stacklevel=3)
    order = view.stored_weights("initial")
    merged = {**others, **arrays}
    return {name: tensor(merged[name]) for name in [*order, *(n for n in merged if n not in order)]}


def _require_all(view: View, at_step: int | None, allow_inexact: bool) -> None:
    """Raises Inexact, naming every layer that cannot be rebuilt well enough."""
    reasons = list[str]()
    for layer in view.snapshot.layers.values():
        try:
            require(view, layer, at_step, allow_inexact)
        except Inexact as refusal:
            reasons.append(refusal.message.rstrip("."))
    if reasons:
        raise Inexact(
            f"the network cannot be rebuilt: {'; '.join(reasons)}.", hint="Ask single layers for their output instead."
        )


def _recorded(
    view: View, where: str | Mapping[str, str] | None, at_step: int | None, allow_inexact: bool, check: Check
) -> dict[str, NDArray[Any]]:
    """The rebuilt parameters of the recorded layers."""
    of_space = where.get if isinstance(where, Mapping) else lambda _: where
    selections = {name: view.select(layer.space, of_space(layer.space)) for name, layer in view.snapshot.layers.items()}
    if where is not None and not any(selection.count for selection in selections.values()):
        raise EmptyMask(f"where leaves no slot: {where}", field="where")
    arrays: dict[str, NDArray[Any]] = {}
    for name, layer in view.snapshot.layers.items():
        rebuilt = rebuild(view, layer, selections[name], at_step, allow_inexact, check, selections)
        arrays |= {name: parameter.astype(np.float32) for name, parameter in rebuilt.parameters.items()}
    return arrays


def _other_names(view: View, arrays: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """Further names of recorded parameters -> the name they were recorded under.

    A state dict names a tied weight twice. Two entries that are the same to the bit before and after a training that
    moved them are one tensor.
    """
    initial, final = view.stored_weights("initial"), view.stored_weights("final")
    moved = [name for name in arrays if not np.array_equal(initial[name], final.get(name, initial[name]))]
    found: dict[str, str] = {}
    for other in final:
        if other in arrays or other not in initial:
            continue
        for name in moved:
            if np.array_equal(initial[other], initial[name]) and np.array_equal(final[other], final[name]):
                found[other] = name
    return found


def _from_numpy() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingPackage("torch is not installed.", hint="pip install 'dualform[record]' brings it.") from None
    return lambda array: torch.from_numpy(np.array(array))
