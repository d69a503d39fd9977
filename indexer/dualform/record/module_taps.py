"""The taps of a model's modules that have certain names, for whoever looks at layers without recording them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from numpy.typing import NDArray
from torch import nn

from dualform.errors import BadInput
from dualform.record.taps import ModuleTap, Tap


def taps_named(model: nn.Module, names: Set[str]) -> dict[str, Tap]:
    """By name, those of the given names that the model has, whether they train or not."""
    taps, covered = dict[str, Tap](), set[str]()
    for name, module in model.named_modules():
        kind = ModuleTap.kind_of(module)
        if kind is None or name in covered or kind.refusal(module):
            continue
        covered.update(f"{name}.{own}" if name else own for own in kind.covered)
        taps |= {tap.name: tap for tap in kind.taps_of(name, module) if tap.name in names}
    return taps


def taps_of_recorded(model: nn.Module, names: Set[str], weights: Mapping[str, NDArray[Any]]) -> dict[str, Tap]:
    """As `taps_named`, of a model that was recorded with layers of these names and such weights. Raises BadInput for
    another one.
    """
    taps = taps_named(model, names)
    missing = [name for name in names if name not in taps]
    if missing:
        raise BadInput(
            f"The model lacks {', '.join(map(repr, missing))}, which the memory was recorded with.",
            hint="Pass the model that was recorded, with the same names of layers.",
            field="model",
        )
    shapes = {name: tuple(own.shape) for name, own in model.state_dict().items()}
    for name, array in sorted(weights.items()):
        if shapes.get(name) != array.shape:
            raise BadInput(
                f"{name!r} is {list(array.shape)} in the memory, and {list(shapes[name]) if name in shapes else 'not'} "
                "in the model.",
                hint="Give the model that was recorded.",
                field="model",
            )
    return taps
