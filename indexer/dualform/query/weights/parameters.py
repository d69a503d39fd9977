"""The whole network's parameters when only some slots speak, or as of an earlier step."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Grade
from dualform.errors import EmptyMask, Inexact
from dualform.query.view import Check, View
from dualform.query.weights.exactness import grade
from dualform.query.weights.rebuilt import check_step, rebuild


@dataclass(frozen=True, eq=False)
class Network:
    arrays: Mapping[str, NDArray[Any]]
    """Every parameter and buffer under the model's own name: those of recorded layers rebuilt, in float32."""
    not_recorded: tuple[str, ...]
    """Those of no recorded layer, which stand as at the end of the training."""
    grades: Mapping[str, Grade]
    """By layer."""
    standing: Mapping[str, float]
    """By layer."""
    kept: Mapping[str, int]
    """By slot space: how many slots the mask left."""


def state_dict(
    view: View, where: str | Mapping[str, str] | None, at_step: int | None, allow_inexact: bool, check: Check
) -> Network:
    """The network as of a step under one mask, or under masks by slot space.

    Warns of what is not recorded where the question is not about the end. Raises Inexact where a recorded layer cannot
    be rebuilt, EmptyMask where no slot is left.
    """
    check_step(view, at_step)
    _require(view, at_step, allow_inexact)
    rebuilt = _recorded(view, where, at_step, allow_inexact, check)
    stored = view.stored_weights("final")
    others = {name: np.array(array) for name, array in stored.items() if name not in rebuilt.arrays}
    if others and (where is not None or at_step is not None):
        warnings.warn(f"not recorded, so they stand as at the end of the training: {', '.join(others)}.", stacklevel=6)
    return Network({**rebuilt.arrays, **others}, tuple(sorted(others)), rebuilt.grades, rebuilt.standing, rebuilt.kept)


def _require(view: View, at_step: int | None, allow_inexact: bool) -> None:
    grades = {name: grade(view, layer, at_step) for name, layer in view.snapshot.layers.items()}
    refused = {
        name: found.reason
        for name, found in grades.items()
        if found.reason and not (allow_inexact and found.name != "scores only")
    }
    if refused:
        listed = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise Inexact(f"the network cannot be rebuilt. {listed}", hint="Ask single layers for their output instead.")


def _recorded(
    view: View, where: str | Mapping[str, str] | None, at_step: int | None, allow_inexact: bool, check: Check
) -> Network:
    """The rebuilt parameters of the recorded layers."""
    layers = view.snapshot.layers
    masks = {one.name: where.get(one.space) if isinstance(where, Mapping) else where for one in layers.values()}
    selections = {name: view.select(layer, masks[name]) for name, layer in layers.items()}
    kept = {layers[name].space: selection.count for name, selection in selections.items()}
    if where and not any(kept.values()):
        raise EmptyMask(f"where leaves no slot: {where}", field="where")
    arrays = dict[str, NDArray[Any]]()
    grades, standing = dict[str, Grade](), dict[str, float]()
    for name, layer in layers.items():
        rebuilt = rebuild(view, layer, selections[name], at_step, allow_inexact, check)
        arrays |= {part: parameter.astype(np.float32) for part, parameter in rebuilt.parameters.items()}
        grades[name], standing[name] = rebuilt.grade, rebuilt.standing
    return Network(arrays, (), grades, standing, kept)
