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
from dualform.query.weights.exactness import why_scores_only
from dualform.query.weights.rebuilt import rebuild
from dualform.query.weights.requirement import require
from dualform.query.where import mask
from dualform.questions.arguments import check_step
from dualform.store.parameter import Parameter, whole


@dataclass(frozen=True, eq=False)
class Network:
    arrays: Mapping[str, NDArray[Any]]
    """Every parameter and buffer under the model's own name: those of recorded layers rebuilt, in float32."""
    not_recorded: tuple[str, ...]
    """Those of no recorded layer, and "the rest of" those of which only some blocks are recorded; they stand as at the
    end of the training.
    """
    grades: Mapping[str, Grade]
    """By layer."""
    standing: Mapping[str, float]
    """By layer."""
    kept: Mapping[str, int]
    """By slot space: how many slots the mask left, of the layer that keeps most."""


def state_dict(
    view: View, where: str | Mapping[str, str] | None, at_step: int | None, allow_inexact: bool, check: Check
) -> Network:
    """The network as of a step under one mask, or under masks by slot space; spaces that are not named stay whole.

    Warns of what is not recorded where the question is not about the end. Raises Inexact where a recorded layer cannot
    be rebuilt well enough, EmptyMask where no slot is left.
    """
    check_step(at_step, view.snapshot.steps)
    _require_all(view, at_step, allow_inexact, check)
    rebuilt = _recorded(view, where, at_step, allow_inexact, check)
    arrays = dict(rebuilt.arrays)
    arrays |= {name: arrays[known] for name, known in view.snapshot.aliases.items() if known in arrays}
    others = {name: np.array(array) for name, array in view.stored_weights("final").items() if name not in arrays}
    left = (*sorted(others), *rebuilt.not_recorded)
    if left and (where is not None or at_step is not None):
        warnings.warn(f"not recorded, so they stand as at the end of the training: {', '.join(left)}.", stacklevel=6)
    return Network({**arrays, **others}, left, rebuilt.grades, rebuilt.standing, rebuilt.kept)


def _require_all(view: View, at_step: int | None, allow_inexact: bool, check: Check) -> None:
    """Raises Inexact, naming every layer that cannot be rebuilt well enough."""
    refusals = dict[str, Inexact]()
    for layer in view.snapshot.layers.values():
        try:
            require(view, layer, at_step, allow_inexact, check)
        except Inexact as refusal:
            refusals[layer.name] = refusal
    if refusals:
        reasons = "; ".join(refusal.message.rstrip(".") for refusal in refusals.values())
        raise Inexact(f"the network cannot be rebuilt: {reasons}.", hint=_hint(view, refusals))


def _hint(view: View, refusals: Mapping[str, Inexact]) -> str:
    """What may be asked instead: no layer is answered by itself that was refused here."""
    stuck = any(why_scores_only(view, view.snapshot.layer(name)) for name in refusals)
    others = [name for name in view.snapshot.layers if name not in refusals]
    if stuck and others:
        return f"Ask single layers for their output instead: {', '.join(others)}."
    hints = {refusal.hint for refusal in refusals.values()}
    if len(hints) == 1:
        return hints.pop()
    return "Scores are exact all the same." if stuck else "Ask with allow_inexact=True to have it all the same."


def _recorded(
    view: View, where: str | Mapping[str, str] | None, at_step: int | None, allow_inexact: bool, check: Check
) -> Network:
    """The rebuilt parameters of the recorded layers."""
    layers = view.snapshot.layers
    masks = {one.name: where.get(one.space) if isinstance(where, Mapping) else where for one in layers.values()}
    selections = {name: mask.selection(view, layer, masks[name]) for name, layer in layers.items()}
    kept = dict[str, int]()
    for name, selection in selections.items():
        kept[layers[name].space] = max(kept.get(layers[name].space, 0), selection.count)
    if where and not any(kept.values()):
        raise EmptyMask(f"where leaves no slot: {where}", field="where")
    blocks = dict[Parameter, NDArray[np.float64]]()
    grades, standing = dict[str, Grade](), dict[str, float]()
    for name, layer in layers.items():
        rebuilt = rebuild(view, layer, selections[name], at_step, allow_inexact, check, selections)
        blocks |= {block: rebuilt.parameters[block.block_name] for block in layer.parameters}
        grades[name], standing[name] = rebuilt.grade, rebuilt.standing
    arrays, rest = _placed(view, blocks)
    return Network(arrays, tuple(f"the rest of {name}" for name in rest), grades, standing, kept)


def _placed(view: View, blocks: Mapping[Parameter, NDArray[np.float64]]) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """The blocks in float32 in their parameters, by name; and the names of parameters that have others besides.

    Those others stand as at the end of the training.
    """
    initial, final = view.stored_weights("initial"), view.stored_weights("final")
    arrays, rest = dict[str, NDArray[Any]](), list[str]()
    held = dict[str, list[Parameter]]()
    for block in blocks:
        held.setdefault(block.name, []).append(block)
    for name, own in held.items():
        shape = initial[name].shape
        last = final[name] if name in final and final[name].shape == shape else initial[name]
        arrays[name] = last.astype(np.float32, order="C")
        for block in own:
            block.put(arrays[name], blocks[block])
        if not whole(own, shape):
            rest.append(name)
    return arrays, rest
