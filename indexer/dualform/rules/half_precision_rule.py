"""Update rules of parameters that are of half precision themselves: each update is rounded as torch rounds it.

Shares of a mask cannot be rounded. They go through the rule as it is, and what rounding did to the whole is no slot's
part, which is added to each of them: weights under a mask and under its opposite add up as they do without rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dualform.rules.half_precision import HalfType
from dualform.rules.update_rule import Arrays, Doubles, ImageKind, Scale, Settings, State, UpdateRule, updated


@runtime_checkable
class RoundedRule(Protocol):
    """An update rule that knows how torch rounds its update."""

    def rounded(self, state: State, gradient: Doubles, settings: Settings, half: HalfType) -> State:
        """The whole after one update, all of it of a type of half precision, in torch's operations one after another.

        Treats each number of a parameter on its own, as `scale` and `advance` must.
        """
        ...


@dataclass(frozen=True, eq=False)
class _HalfPrecisionScale(Scale):
    linear: Scale | None = field(kw_only=True)
    """The rule's own."""
    rest: Arrays = field(kw_only=True)
    """What rounding did to the weight, under "", and to each linear buffer."""


class HalfPrecisionRule(UpdateRule):
    """A rule, of parameters of half precision."""

    commutes_with: ImageKind = "entries"

    def __init__(self, rule: UpdateRule, dtype: str) -> None:
        assert isinstance(rule, RoundedRule)
        self._rule, self._rounded, self.half = rule, rule.rounded, HalfType(dtype)
        self.name, self.settings = rule.name, rule.settings
        self.buffers, self.statistics = rule.buffers, rule.statistics

    def read(self, group: Mapping[str, Any]) -> Settings:
        return self._rule.read(group)

    def refusal(self, group: Mapping[str, Any]) -> str:
        return self._rule.refusal(group)

    def keeps(self, settings: Settings) -> bool:
        return self._rule.keeps(settings)

    def scale(self, state: State, gradient: Doubles, settings: Settings) -> Scale:
        plain, linear = updated(self._rule, state, gradient, settings)
        found = self._rounded(state, self.half(gradient), settings, self.half)
        rest = {kind: found.buffers[kind] - plain.buffers[kind] for kind in self.buffers if kind in plain.buffers}
        statistics = {kind: found.buffers[kind] for kind in self.statistics if kind in found.buffers}
        factors = np.empty(0) if linear is None else linear.factors
        return _HalfPrecisionScale(factors, statistics, linear=linear, rest={"": found.weight - plain.weight, **rest})

    def advance(self, state: State, gradient: Doubles, settings: Settings, scale: Scale | None = None) -> State:
        assert isinstance(scale, _HalfPrecisionScale)
        after = self._rule.advance(state, gradient, settings, scale.linear)
        buffers = {kind: own + scale.rest.get(kind, 0.0) for kind, own in after.buffers.items()}
        return State(after.weight + scale.rest[""], buffers)
