"""Gathers what batches bring of the training itself, until the tables take it: the optimizer's steps, the factors and
the watch of its updates, defects, names of labels, and digests of what layers were fed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dualform.store.batch import Batch, StepLog
from dualform.store.digests import digests
from dualform.store.tables import FIRST_STEP, OPTIONAL, SETTINGS, SHARES, TABLES, ColumnTypes, arrow_table, rows_table


class LogRows:
    """Rows of plain values by table; learns which settings the optimizer has."""

    def __init__(self, settings: ColumnTypes, label_names: Mapping[str, Sequence[str]], several: bool = False) -> None:
        """`several`: whether more than one optimizer is logged."""
        self._factors = {**TABLES["factors"], **(FIRST_STEP if several else {})}
        self.settings: dict[str, str] = dict(SETTINGS) | dict(settings)
        """DuckDB types of the optimizer's settings: those given, then others as they are seen."""
        self.further: dict[str, ColumnTypes] = {}
        """Tables that came while recording."""
        self._named: dict[str, list[dict[str, Any]]] = {}
        """Rows of tables that have the settings as columns; what a row lacks is NULL."""
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        for dataset, names in label_names.items():
            self._add("labels", [(dataset, label, name) for label, name in enumerate(names)])

    def append(self, batch: Batch, digested: Mapping[str, str]) -> None:
        """Add what one batch says; `digested`: layer -> space, of layers of which a digest is kept at each step."""
        for log in batch.logs:
            self._append_log(log)
        self._add("defects", [(d.step, d.layer, d.reason) for d in batch.defects])
        self._add(
            "watch", [(w.step, w.parameter, w.one_step, w.accumulated, w.way, w.rounding, w.noise) for w in batch.watch]
        )
        self._add("random_states", [(batch.step, device, state) for device, state in batch.random_states.items()])
        self._add("shares", [(batch.step, s.space, s.share, s.slots, s.kept) for s in batch.shares])
        found = digests(batch, digested) if digested else {}
        self._add("digests", [(batch.step, name, digest.keys, digest.columns) for name, digest in found.items()])

    def _append_log(self, log: StepLog) -> None:
        numbered = {index if group.number is None else group.number: group for index, group in enumerate(log.groups)}
        if not log.more:
            first = dict(numbered[0].settings) if 0 in numbered else {}
            clip = log.factors[0].factor if log.factors else None
            step = {"step": log.step, "updated": log.updated, "first_step": log.first_step, "clip": clip}
            self._named.setdefault("steps", []).append(first | step)
        groups = self._named.setdefault("parameter_groups", [])
        for number, group in numbered.items():
            groups.append({**group.settings, "step": log.step, "group": number})
            if group.settings.keys() - self.settings.keys():
                self.settings |= _types(group.settings, self.settings)
        rows = [(log.step, f.parameter, f.group, f.factor, f.residual, f.first_step) for f in log.factors]
        self._add("factors", [row[: len(self._factors)] for row in rows])
        alone = [(log.step, f.parameter, f.alone.rows, f.alone.gradient) for f in log.factors if f.alone is not None]
        self._add("rounding_gradients", alone)

    def _add(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            if table in OPTIONAL:
                self.further[table] = OPTIONAL[table]
            self._rows.setdefault(table, []).extend(rows)

    def take(self) -> dict[str, pa.Table]:
        """The rows by table since the last call; a table without new rows is absent."""
        tables = {name: self._table(name, rows) for name, rows in self._named.items() if rows}
        types = {**TABLES, **OPTIONAL, **SHARES, "factors": self._factors}
        tables |= {name: rows_table(rows, types[name]) for name, rows in self._rows.items()}
        self._named, self._rows = {}, {}
        return tables

    def _table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        types = {**TABLES[name], **self.settings}
        return arrow_table({column: [row.get(column) for row in rows] for column in types}, types)


def _types(settings: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, str]:
    new = {name: value for name, value in settings.items() if name not in known}
    return {name: "BOOLEAN" if isinstance(value, (bool, np.bool_)) else "DOUBLE" for name, value in new.items()}
