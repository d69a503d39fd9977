"""An optimizer's log of one step, as rows of the tables steps, parameter_groups and factors."""

from __future__ import annotations

from typing import Any

from dualform.store.batch import ParameterGroup, StepLog


def step_rows(log: StepLog, settings: int) -> dict[str, list[tuple[Any, ...]]]:
    """Rows by table, in the tables' column order; `settings`: how many are logged of a group."""
    first = _settings(log.groups[0]) if log.groups else (None,) * settings
    clip = log.factors[0].factor if log.factors else None
    return {
        "steps": [(log.step, log.updated, log.first_step, *first, clip)],
        "parameter_groups": [(log.step, index, *_settings(group)) for index, group in enumerate(log.groups)],
        "factors": [(log.step, f.parameter, f.group, f.factor, f.residual) for f in log.factors],
    }


def _settings(group: ParameterGroup) -> tuple[Any, ...]:
    return tuple(group.settings.values())
