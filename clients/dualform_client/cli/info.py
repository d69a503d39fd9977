"""dualform info: what a memory holds."""

from __future__ import annotations

from dataclasses import asdict

import click

from dualform.answers import LayerInfo, MemoryInfo
from dualform.methods import Answers
from dualform_client.cli.importance import Importance
from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_line, print_table
from dualform_client.cli.status_columns import STATUS_COLUMNS, status_entries
from dualform_client.cli.target import asks_target

_IMPORTANCE = Importance(
    ("layer", "status"),
    last=("reason", "slots", "d_in", "d_out", "values", "space", "distinct keys"),
    first=("rounding", "distance", "bias"),
)
"""Of the columns of layers."""


@click.command()
@asks_target
@json_option
def info(memory: Answers, as_json: bool) -> None:
    """Show layers, slots, datasets, query sets and statuses.

    \b
    Example:
      dualform info 127.0.0.1:50051
    """
    contents = memory.info()
    if as_json:
        layers = [{**asdict(layer), "exact": layer.exact, "reason": layer.reason} for layer in contents.layers]
        print_json({**asdict(contents), "layers": layers})
        return
    slots = ", ".join(f"{count} {space} slots" for space, count in contents.slots.items())
    state = "not finished" if contents.recording else "finished"
    print_line(f"{contents.steps} steps of {contents.optimizer}, {slots}; snapshot {contents.snapshot}, {state}")
    if contents.answered_by:
        print_line(contents.answered_by)
    if contents.cut_off:
        print_line(contents.cut_off)
    if contents.sampling:
        print_line(contents.sampling)
    _print_layers(contents)
    if contents.datasets:
        print_table("datasets", ["dataset", "slots"], contents.datasets.items())
    for space, columns in contents.columns.items():
        print_table(f"columns of {space} slots", ["column", "type"], columns.items())
    if contents.query_sets:
        every = tuple(layer.name for layer in contents.layers)
        rows = [
            [
                query_set.name,
                query_set.rows,
                "all" if query_set.layers == every else ", ".join(query_set.layers),
                query_set.previews or "-",
            ]
            for query_set in contents.query_sets
        ]
        print_table("query sets", ["query set", "rows", "layers", "previews"], rows)
    if contents.previews:
        preview_sets = [[dataset or "-", kind] for dataset, kind in contents.previews.items()]
        print_table("previews", ["dataset", "what samples looked like"], preview_sets)
    if contents.skipped:
        print_table("skipped", ["layer", "reason"], contents.skipped.items())


def _print_layers(contents: MemoryInfo) -> None:
    columns = ["layer", "d_in", "d_out", "bias", "space", "slots", "distinct keys", "values", *STATUS_COLUMNS]
    rows = [
        [
            _name_and_views(layer),
            layer.d_in,
            layer.d_out,
            _yes(layer.bias),
            layer.space,
            layer.slots,
            layer.distinct_keys,
            _yes(layer.values),
            *status_entries(layer.status),
        ]
        for layer in contents.layers
    ]
    print_table("layers", columns, rows, _IMPORTANCE)


def _name_and_views(layer: LayerInfo) -> str:
    """A layer's name, and those of its views in short."""
    if not layer.views:
        return layer.name
    first, *_, last = layer.views
    return f"{layer.name} ({first} … {last})"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
