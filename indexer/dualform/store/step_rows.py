"""An optimizer's log of one step, as rows of the tables steps, parameter_groups and factors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dualform.store.batch import Factor, StepLog
from dualform.store.tables import SETTINGS, TABLES, ColumnTypes, arrow_table, rows_table


class StepRows:
    """Gathers logs between two increments, and learns which settings the optimizer has."""

    def __init__(self, settings: ColumnTypes) -> None:
        self.settings: dict[str, str] = dict(SETTINGS) | dict(settings)
        """DuckDB types of the optimizer's settings: those given, then others as they are seen."""
        self._logs: list[StepLog] = []

    def append(self, log: StepLog) -> None:
        """Add what is known of one step."""
        self._logs.append(log)
        for group in log.groups:
            if group.settings.keys() - self.settings.keys():
                self.settings |= _types(group.settings, self.settings)

    def take(self) -> dict[str, pa.Table]:
        """The rows by table since the last call; a table without new rows is absent."""
        logs, self._logs = self._logs, []
        groups = [(log.step, index, group.settings) for log in logs for index, group in enumerate(log.groups)]
        factors = [(log.step, f.parameter, f.group, f.factor, f.residual) for log in logs for f in log.factors]
        tables = {
            "steps": _steps(logs, {**TABLES["steps"], **self.settings}, self.settings),
            "parameter_groups": _groups(groups, {**TABLES["parameter_groups"], **self.settings}, self.settings),
            "factors": rows_table(factors, TABLES["factors"]),
        }
        return {name: rows for name, rows in tables.items() if rows.num_rows}


def _types(settings: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, str]:
    new = {name: value for name, value in settings.items() if name not in known}
    return {name: "BOOLEAN" if isinstance(value, (bool, np.bool_)) else "DOUBLE" for name, value in new.items()}


def _steps(logs: list[StepLog], types: ColumnTypes, settings: ColumnTypes) -> pa.Table:
    first = [log.groups[0].settings if log.groups else {} for log in logs]
    columns: dict[str, list[Any]] = {name: [each.get(name) for each in first] for name in settings}
    columns["step"] = [log.step for log in logs]
    columns["updated"] = [log.updated for log in logs]
    columns["first_step"] = [log.first_step for log in logs]
    columns["clip"] = [_clip(log.factors) for log in logs]
    return arrow_table(columns, types)


def _clip(factors: tuple[Factor, ...]) -> float | None:
    return factors[0].factor if factors else None


def _groups(rows: list[tuple[int, int, Mapping[str, Any]]], types: ColumnTypes, settings: ColumnTypes) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [each.get(name) for _, _, each in rows] for name in settings}
    columns["step"] = [step for step, _, _ in rows]
    columns["group"] = [index for _, index, _ in rows]
    return arrow_table(columns, types)
