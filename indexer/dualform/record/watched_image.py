"""Which numbers of an optimizer's parameters are watched, and by which rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dualform.record.image import Image
from dualform.record.recorded_entries import RecordedEntries
from dualform.record.recorded_parameters import RecordedParameters
from dualform.rules import UpdateRule
from dualform.rules.half_precision import HalfType
from dualform.rules.half_precision_rule import HalfPrecisionRule


@dataclass(frozen=True)
class WatchedImage:
    """Nothing, where no rule can be run on less than whole parameters."""

    seen: UpdateRule | None = None
    """The rule as the weights are looked at."""
    image: Image | None = None
    entries: RecordedEntries | None = None
    """The image, where the rule is watched through entries."""
    rules: Sequence[UpdateRule] = ()
    """One a parameter, which rounds its updates where it is of half precision."""
    halves: Mapping[int, HalfType] = field(default_factory=dict)
    """By index of such a parameter."""

    @classmethod
    def of(
        cls,
        parameters: RecordedParameters,
        rule: UpdateRule | None,
        halved: Mapping[str, str],
        generator: np.random.Generator,
    ) -> WatchedImage:
        """`halved`: as Header says; `generator`: chooses the entries."""
        if rule is None or not rule.commutes_with:
            return cls(rule)
        dtypes = [halved.get(parameter.parameter) for parameter in parameters]
        rules = [HalfPrecisionRule(rule, dtype) if dtype else rule for dtype in dtypes]
        halves = {index: own.half for index, own in enumerate(rules) if isinstance(own, HalfPrecisionRule)}
        seen = rules[next(iter(halves))] if halves else rule
        if seen.commutes_with != "entries":
            return cls(seen, parameters, None, rules, halves)
        entries = RecordedEntries(parameters, generator)
        return cls(seen, entries, entries, rules, halves)
