"""Which parameters are of half precision themselves, with updates that their rule knows how to round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dualform.record.key_form import HALVED
from dualform.record.optimizers import rule_of
from dualform.record.owners import Owners
from dualform.record.taps import Tap
from dualform.rules.half_precision_rule import RoundedRule

_OTHERWISE = ("foreach", "fused", "capturable", "differentiable", "amsgrad")
"""Settings under which an optimizer rounds at other places, or follows another rule."""


def halved_parameters(owners: Owners, taps: Sequence[Tap]) -> dict[str, str]:
    """By name, the type. Known is what torch does on the processor, one tensor after another, as it does unasked."""
    groups = {id(own): group for o in owners.optimizers for group in o.param_groups for own in group["params"]}
    rules = [rule_of(optimizer) for optimizer in owners.optimizers]
    return {
        place.name: HALVED[tensor.dtype]
        for tap in taps
        for place, tensor in tap.parameters.items()
        if tensor.dtype in HALVED
        and tensor.is_cpu
        and isinstance(rules[owners.of(tensor)], RoundedRule)
        and _one_by_one(groups.get(id(tensor), {}))
    }


def _one_by_one(group: dict[str, Any]) -> bool:
    return not any(group.get(name) for name in _OTHERWISE) and not isinstance(group.get("lr"), Tensor)
