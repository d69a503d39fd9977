"""How much each recorded gradient weighs in a parameter at step T, by the update rule of the training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow.compute as pc

from dualform.errors import BadInput, Inexact, NotFound
from dualform.rules import Coefficients, Settings, Update, named
from dualform.store.snapshot import Snapshot

__all__ = ["Coefficients", "coefficients"]


def coefficients(memory: Snapshot, parameter: str, at_step: int | None = None) -> Coefficients:
    """Coefficients of a recorded weight or bias once `at_step` recorded steps were taken; None for all.

    Raises NotFound for a parameter that is not recorded, BadInput for a step that was not reached, Inexact where the
    optimizer has no update rule. Whether the layer is exact is for the caller to ask.
    """
    _check_parameter(memory, parameter)
    stop = memory.steps if at_step is None else at_step
    if not 0 <= stop <= memory.steps:
        raise BadInput(f"at_step is {stop}.", hint=f"The memory holds steps 0 to {memory.steps}.", field="at_step")
    rule = named(memory.rule)
    if rule is None:
        raise Inexact(f"there is no update rule for {memory.optimizer}.", field="layer")
    return rule.coefficients(_updates(memory, parameter, stop), stop, parameter in memory.momentum())


def _check_parameter(memory: Snapshot, parameter: str) -> None:
    known = [known.name for layer in memory.layers.values() for known in layer.parameters]
    if parameter not in known:
        raise NotFound(f"{parameter!r} is no recorded parameter.", hint=f"Recorded are {', '.join(known)}.")


def _updates(memory: Snapshot, parameter: str, stop: int) -> list[Update]:
    """The updates of a parameter at the steps before `stop`, in order."""
    steps = {step: first for step, first, updated in _rows(memory, "steps", "step", "first_step", "updated") if updated}
    settings = _settings(memory)
    own = memory.table("factors").filter(pc.equal(memory.table("factors")["parameter"], parameter))
    rows = zip(*(own[name].to_pylist() for name in ("step", "group", "factor")), strict=True)
    found = [
        Update(steps[step], step, factor, settings[step, group])
        for step, group, factor in rows
        if factor is not None and step < stop and step in steps
    ]
    return sorted(found, key=lambda update: update.last_step)


def _settings(memory: Snapshot) -> dict[tuple[int, int], Settings]:
    """By step and group."""
    table = memory.table("parameter_groups")
    names = [name for name in table.column_names if name not in ("step", "group")]
    keys = _rows(memory, "parameter_groups", "step", "group")
    values = _rows(memory, "parameter_groups", *names)
    return {key: dict(zip(names, row, strict=True)) for key, row in zip(keys, values, strict=True)}


def _rows(memory: Snapshot, table: str, *columns: str) -> Iterable[tuple[Any, ...]]:
    return zip(*(memory.table(table)[name].to_pylist() for name in columns), strict=True)
