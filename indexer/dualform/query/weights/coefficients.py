"""How much each recorded gradient weighs at a step, by the update rule, also across runs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from dualform.errors import Inexact, NotFound
from dualform.query.view import View
from dualform.questions.arguments import check_step
from dualform.rules import Coefficients, LinearRule, Settings, Update, UpdateRule, named
from dualform.rules.half_precision_rule import HalfPrecisionRule, RoundedRule
from dualform.store.batch import Mark, digest_of, named_buffers
from dualform.store.files.durable_files import checksum
from dualform.store.layer import Parameter
from dualform.store.reading.snapshot import Snapshot, why_misplaced


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


def coefficients(memory: Snapshot, parameter: str, at_step: int | None = None, *, factors: bool = True) -> Coefficients:
    """Coefficients of a recorded block, by its name, once `at_step` recorded steps were taken; None for all.

    Without `factors` they are what the optimizer's settings alone make: every gradient factor is taken for 1.
    Raises NotFound for a block that is not recorded, BadInput for a step that was not reached, Inexact where the
    optimizer has no update rule, or one that gives no slot a coefficient. Whether the layer is exact is for the caller
    to ask.
    """
    block = _block_named(memory, parameter)
    check_step(at_step, memory.steps)
    stop = memory.steps if at_step is None else at_step
    if (mover := weighs_no_slot(memory, [block])) is not None:
        raise Inexact(
            f"Coefficients of single slots need SGD; this run used {mover}, which scales gradients together.",
            hint="Use output or weights with where=, which work for groups of slots.",
            field="layer",
        )
    made = updates(memory, parameter, stop)
    if not factors:
        made = [replace(update, factor=1.0) for update in made]
    rule = rule_of(memory, block.block_name)
    assert isinstance(rule, LinearRule)
    return rule.coefficients(made, stop, block.name in memory.buffers())


def _block_named(memory: Snapshot, name: str) -> Parameter:
    known = {block.block_name: block for layer in memory.layers.values() for block in layer.parameters}
    if name not in known:
        raise NotFound(f"There is no recorded parameter {name!r}.", hint=f"Parameters: {', '.join(known)}.")
    return known[name]


def updates(memory: Snapshot, parameter: str, at_step: int | None = None) -> list[Update]:
    """The updates of a parameter, in order, once `at_step` recorded steps were taken; None for all."""
    log = _LOGS.get(memory)
    if log is None:
        log = _LOGS[memory] = _Log(memory)
    stop = memory.steps if at_step is None else at_step
    return [update for update in log.of(parameter) if update.last_step < stop]


class _Log:
    """What a snapshot's tables say of the optimizer, as updates."""

    def __init__(self, memory: Snapshot) -> None:
        self._factors = memory.table("factors")
        rows = _rows(memory, "steps", "step", "first_step", "updated")
        self._first = {step: first for step, first, updated in rows if updated}
        """Where the optimizer is one alone: several say it with each factor."""
        self._settings = _settings(memory)
        self._updates: dict[str, list[Update]] = {}

    def of(self, parameter: str) -> list[Update]:
        if parameter not in self._updates:
            self._updates[parameter] = self._read(parameter)
        return self._updates[parameter]

    def _read(self, parameter: str) -> list[Update]:
        own = self._factors.filter(pc.equal(self._factors["parameter"], parameter))
        rows = zip(*(own[name].to_pylist() for name in ("step", "group", "factor")), strict=True)
        said = own["first_step"].to_pylist() if "first_step" in own.column_names else [None] * own.num_rows
        found = [
            Update(self._first[step] if first is None else first, step, factor, self._settings[step, group])
            for (step, group, factor), first in zip(rows, said, strict=True)
            if factor is not None and (first is not None or step in self._first)
        ]
        return sorted(found, key=lambda update: update.last_step)


_LOGS: WeakKeyDictionary[Snapshot, _Log] = WeakKeyDictionary()
"""Read once a snapshot, for every layer and every step that is asked for."""


def _settings(memory: Snapshot) -> dict[tuple[int, int], Settings]:
    """By step and group; one mapping for all steps whose settings are the same."""
    table = memory.table("parameter_groups")
    names = [name for name in table.column_names if name not in ("step", "group")]
    keys = _rows(memory, "parameter_groups", "step", "group")
    values = _rows(memory, "parameter_groups", *names)
    alike: dict[tuple[Any, ...], Settings] = {}
    return {
        key: alike.setdefault(row, dict(zip(names, row, strict=True))) for key, row in zip(keys, values, strict=True)
    }


def _rows(memory: Snapshot, table: str, *columns: str) -> Iterable[tuple[Any, ...]]:
    return zip(*(memory.table(table)[name].to_pylist() for name in columns), strict=True)


@dataclass(frozen=True)
class Seam:
    """A block that a run did not begin as the run before ended it."""

    step: int
    """The later run's first step."""
    distance: float
    """Norm of the difference of the weights; inf where it is not known what the optimizer went on with."""
    reason: str


def seam(view: View, block: Parameter, run: int) -> Seam | None:
    """Between a run, from 1 on, and the one before; None where all is as it was left.

    Buffers are compared of the whole parameter, of which runs keep one checksum each.
    """
    before, after = view.snapshot.runs[run - 1], view.snapshot.runs[run]
    earlier, later = f"run {run - 1} ({before.path})", f"run {run} ({after.path})"
    step = view.snapshot.first_steps[run]
    if (mark := _resumed(view, run)) is not None:
        why = view.cache.get(("misplaced", run), lambda: why_misplaced(view.snapshot.runs[:run], mark))
        what = f"{later} was resumed from a moment of {earlier} that was counted wrongly: {why}"
        return Seam(step, math.inf, what) if why else None
    ended = weights(view, run - 1, "final").get(block.name)
    if ended is None:
        return Seam(step, math.inf, f"{earlier} was cut off, so the weights that it ended with are not known")
    began, ended = block.block_of(weights(view, run, "initial")[block.name]), block.block_of(ended)
    if began.tobytes() != ended.tobytes():
        distance = float(np.linalg.norm(began.astype(np.float64) - ended.astype(np.float64)))
        return Seam(step, distance or math.inf, f"{later} did not begin with the weights that {earlier} ended with")
    for kind, found in _buffers(after, block).items():
        if found != before.manifest.buffers.get(block.name, {}).get(kind):
            return Seam(step, math.inf, f"{later} did not begin with the {kind} that {earlier} left")
    return None


def _resumed(view: View, run: int) -> Mark | None:
    """The mark of the run before with which a run began, at its last step that counts: the network and what the
    optimizers kept, to the bit. None where it has none.
    """
    before, after = view.snapshot.runs[run - 1], view.snapshot.runs[run]

    def held() -> Mark | None:
        began = digest_of(after.initial().items()), digest_of(named_buffers(after.buffers()))
        marks = [mark for mark in before.manifest.marks if mark.step == before.steps]
        return next((mark for mark in reversed(marks) if (mark.weights, mark.buffers) == began), None)

    return view.cache.get(("resumed", run), held)


def weights(view: View, run: int, which: Literal["initial", "final"]) -> Mapping[str, NDArray[Any]]:
    """A run's state dict as it was stored; empty where its training was cut off before its end."""
    of_run = view.snapshot.runs[run]
    made = of_run.initial if which == "initial" else of_run.final
    return view.cache.get(("weights of a run", run, which), lambda: made() or {})


def _buffers(run: Snapshot, block: Parameter) -> dict[str, str | None]:
    """The checksum of each buffer that a run's updates went on with, as it was at the beginning; None where missing."""
    rule = named(run.optimizer_of(block.block_name).rule)
    if rule is None or not any(rule.keeps(update.settings) for update in updates(run, block.block_name, run.steps)):
        return {}
    held = run.buffers().get(block.name, {})
    return {
        kind: checksum(held[kind].tobytes()) if kind in held else None for kind in (*rule.buffers, *rule.statistics)
    }
