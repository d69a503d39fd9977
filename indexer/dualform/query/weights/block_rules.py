"""Which update rule moved a block: the same in all runs of a training, but for rounding, which is each run's own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from dualform.errors import Inexact
from dualform.rules import LinearRule, UpdateRule, named
from dualform.rules.half_precision_rule import HalfPrecisionRule, RoundedRule
from dualform.store.parameter import Parameter
from dualform.store.snapshot import Snapshot


class BlockRules:
    """The rule of one block, as it was followed in each run."""

    def __init__(self, memory: Snapshot, block: Parameter) -> None:
        """Raises Inexact where there is no rule."""
        rule = rule_of(memory, block.block_name)
        self.halves = [run.manifest.halved.get(block.name, "") for run in memory.runs]
        """By run, "bfloat16" or "float16" where the block was of that type, and its updates rounded; "" elsewhere."""
        self._rules = [_rounded(rule, dtype) for dtype in self.halves]
        self._first_steps = memory.first_steps

    @property
    def linear(self) -> bool:
        """Whether each slot has one coefficient. Under rounding none has, whatever the rule."""
        return all(isinstance(rule, LinearRule) for rule in self._rules)

    @property
    def first(self) -> UpdateRule:
        """That of the first run."""
        return self._rules[0]

    def at(self, step: int) -> UpdateRule:
        """That of the run which recorded a step."""
        return self._rules[bisect_right(self._first_steps, step) - 1]


def rule_of(memory: Snapshot, block: str) -> UpdateRule:
    """The update rule that moved a block, by its name, without rounding. Raises Inexact where there is none."""
    optimizer = memory.optimizer_of(block)
    rule = named(optimizer.rule)
    if rule is None:
        raise Inexact(f"dualform has no update rule for {optimizer.name}.", field="layer")
    return rule


def weighs_no_slot(memory: Snapshot, blocks: Iterable[Parameter]) -> str | None:
    """What gives the slots of one of some blocks no coefficients, as "AdamW"; None where there is no such block.

    An optimizer without a rule is not named: nothing at all can be rebuilt of its blocks.
    """
    for block in blocks:
        optimizer = memory.optimizer_of(block.block_name)
        if named(optimizer.rule) is None:
            continue
        rules = BlockRules(memory, block)
        if isinstance(named(optimizer.rule), LinearRule) and not rules.linear:
            return f"{optimizer.name} of {next(filter(None, rules.halves))} weights"
        if not rules.linear:
            return optimizer.name
    return None


def _rounded(rule: UpdateRule, dtype: str) -> UpdateRule:
    return HalfPrecisionRule(rule, dtype) if dtype and isinstance(rule, RoundedRule) else rule
