"""The view of a space: one row a slot, made of its extents and the samples when it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dualform.store.tables import ColumnTypes, extents_table, quoted, view_types

# Lists unnested in one SELECT are zipped: no list is copied for each slot, and one that is NULL reads as NULLs.
_VIEW = """CREATE OR REPLACE VIEW {view} AS SELECT {columns} FROM (
  SELECT extent_step, extent_call{datapoints}, extent_first + i AS slot,
    CASE WHEN regular THEN CAST(i // coalesce(extent_length, 1) AS INTEGER) ELSE listed_row END AS slot_row,
    CASE WHEN in_order THEN i % extent_length ELSE listed_position END AS slot_position{tokens}
  FROM (
    SELECT step AS extent_step, "call" AS extent_call, first_slot AS extent_first, "length" AS extent_length,
      "row" IS NULL AS regular, "position" IS NULL AS in_order{first},
      unnest(range(slots)) AS i, unnest("row") AS listed_row, unnest("position") AS listed_position{lists}
    FROM {extents}
  )
) AS e LEFT JOIN samples AS s ON {same}"""
_IN_A_SHARD = {
    "datapoints": "",
    "first": "",
    "extents": "{extents}",
    "same": 's.step = e.extent_step AND s."row" IS NOT DISTINCT FROM e.slot_row',
}
"""The rows of a step are numbered from 0."""
_IN_ALL = {
    "datapoints": ", first_datapoint, unknown_datapoint",
    "first": ", first_datapoint, CASE WHEN unknown_step = step THEN unknown_datapoint END AS unknown_datapoint",
    "extents": """{extents} ASOF LEFT JOIN (
      SELECT step AS unknown_step, datapoint AS unknown_datapoint FROM samples WHERE "row" IS NULL
    ) ON first_datapoint <= unknown_datapoint""",
    "same": "s.datapoint = coalesce(e.first_datapoint + e.slot_row, e.unknown_datapoint)",
}
"""In every shard they are, which datapoints tell apart (extents.py)."""
_OF_EXTENT = {
    "slot": "e.slot",
    "step": "e.extent_step",
    "row": "e.slot_row",
    "position": "e.slot_position",
    "call": "e.extent_call",
}


def view_name(space: str, spaces: Sequence[str]) -> str:
    """The first space's view is `slots`, that of each other has its name."""
    return "slots" if space == spaces[0] else space


def view_statements(spaces: Sequence[str], columns: Mapping[str, ColumnTypes], *, merged: bool = False) -> list[str]:
    """The views of all spaces; `columns` as the manifest has them. `merged`: over the tables of several shards or runs,
    read as one memory's.
    """
    return [_view_statement(view_name(s, spaces), s, columns["samples"], columns[s], merged) for s in spaces]


def _view_statement(view: str, space: str, samples: ColumnTypes, token_columns: ColumnTypes, merged: bool) -> str:
    """CREATE OR REPLACE VIEW for a space: slot, step, row, position, call, dataset, label, sample, user columns."""
    token = {name: f"token_{number}" for number, name in enumerate(token_columns)}
    columns = []
    for name in view_types(samples, token_columns):
        said = f"e.{token[name]}" if name in token else f"s.{quoted(name)}"
        columns.append(f"{_OF_EXTENT.get(name, said)} AS {quoted(name)}")
    joined = dict(_IN_ALL if merged else _IN_A_SHARD)
    return _VIEW.format(
        view=quoted(view),
        columns=", ".join(columns),
        tokens="".join(f", {alias}" for alias in token.values()),
        lists="".join(f", unnest({quoted(name)}) AS {alias}" for name, alias in token.items()),
        **joined | {"extents": joined["extents"].format(extents=quoted(extents_table(space)))},
    )
