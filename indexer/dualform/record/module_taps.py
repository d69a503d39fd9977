"""The taps of a model's modules that have certain names, for whoever looks at layers without recording them."""

from __future__ import annotations

from collections.abc import Set

from torch import nn

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
