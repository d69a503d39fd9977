"""How much each recorded gradient weighs in a parameter at step T, by the update rule of the training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow.compute as pc

from dualform.errors import Inexact, NotFound
from dualform.query.weights.block_rules import rule_of, weighs_no_slot
from dualform.questions.arguments import check_step
from dualform.rules import Coefficients, LinearRule, Settings, Update
from dualform.store.parameter import Parameter
from dualform.store.snapshot import Snapshot

__all__ = ["Coefficients", "coefficients", "updates"]


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


def updates(memory: Snapshot, parameter: str, stop: int) -> list[Update]:
    """The updates of a parameter at the steps before `stop`, in order."""
    log = _LOGS.get(memory)
    if log is None:
        log = _LOGS[memory] = _Log(memory)
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
