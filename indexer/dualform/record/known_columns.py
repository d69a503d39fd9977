"""What a training may say under which name, in this run as in those that it goes on from.

A column keeps its type, and no two differ in case alone: a mask over one would read the other. `share` is said by a
budget, for a run that holds one and for those before and behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dualform.errors import BadInput, RecordingError
from dualform.record.column_values import Array, fitted
from dualform.record.plan import Plan
from dualform.store.manifest import Manifest
from dualform.store.tables import KINDS, SAMPLES, SHARE, ColumnTypes, duckdb_type
from dualform.store.user_columns import common_types


class KnownColumns:
    """The names and types of the runs before, and the names of this one."""

    def __init__(self, before: Mapping[str, ColumnTypes] | None = None, sampled: bool = False) -> None:
        """`before`: by space, the columns that runs before have of its single slots, and under "" those of samples;
        `sampled`: whether any run of the training holds a budget.
        """
        self._before = before or {}
        self._sampled = sampled
        self._spelled = {name.lower(): name for types in self._before.values() for name in types}

    @classmethod
    def of(cls, plan: Plan) -> KnownColumns:
        """Those of a training. Raises RecordingError where a budget would take the name of a column that it has."""
        manifests = [] if plan.resumed is None else plan.resumed.manifests
        before = _said(manifests)
        if plan.budget is not None and any(name.lower() == SHARE for types in before.values() for name in types):
            raise RecordingError(
                f"the resumed training has its own column {SHARE!r}, which a recorder with a budget fills.",
                hint="Resume it without a budget, or record into a new folder.",
            )
        sampled = plan.budget is not None or any(manifest.sampling is not None for manifest in manifests)
        # Each rank has types of its own, of which a reader makes one.
        return cls(before if plan.ranks is None else {}, sampled)

    def check_names(self, names: Iterable[str]) -> None:
        """Raises BadInput for a column that another one of the training is called but for case, and for a budget's."""
        for name in names:
            if self._sampled and name.lower() == SHARE:
                raise BadInput(
                    f"column {name!r} is filled by a recorder with a budget.",
                    hint="Rename yours.",
                    field=name,
                )
            known = self._spelled.setdefault(name.lower(), name)
            if known != name:
                raise BadInput(
                    f"Columns {known!r} and {name!r} differ only in case, which SQL ignores.",
                    hint=f"Use {known!r} in every step, or rename one of them.",
                    field=name,
                )

    def fitted(self, space: str, name: str, entry: Array) -> Array:
        """An entry in the type that runs before gave a column of a space's slots, or of samples (""): as it is if they
        had none. Raises BadInput for another type.
        """
        known, now = self._before.get(space, {}).get(name), duckdb_type(entry)
        if known is None or known == now:
            return entry
        try:
            return fitted(name, entry, KINDS[known].numpy)
        except BadInput:
            raise BadInput(
                f"Column {name!r} is {now}, but {known} in the training that is resumed.",
                hint="Pass it with its old type, or under another name.",
                field=name,
            ) from None


def _said(manifests: Iterable[Manifest]) -> dict[str, ColumnTypes]:
    """As `KnownColumns` takes it."""
    found: dict[str, ColumnTypes] = {}
    for manifest in manifests:
        for table in ("samples", *manifest.spaces):
            taken = {*SAMPLES, *([SHARE] if manifest.sampling is not None else [])}
            own = {name: kind for name, kind in manifest.columns.get(table, {}).items() if name not in taken}
            space = "" if table == "samples" else table
            found[space] = common_types(found.get(space, {}), own)
    return found
