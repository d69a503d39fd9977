"""dualform info: what a memory holds."""

from __future__ import annotations

from dataclasses import asdict

import click

from dualform.answers import LayerInfo, MemoryInfo
from dualform.methods import Answers
from dualform_client.cli.grades import GRADE_COLUMNS, grade_entries
from dualform_client.cli.importance import Importance
from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_line, print_table
from dualform_client.cli.target import asks_target

_IMPORTANCE = Importance(
    ("layer", "grade"),
    last=("reason", "slots", "d_in", "d_out", "values", "space", "distinct keys"),
    first=("rounding", "distance", "bias"),
)
"""Of the columns of layers."""


@click.command()
@asks_target
@json_option
def info(memory: Answers, as_json: bool) -> None:
    """Show layers, slots, datasets, probes, and what was skipped.

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
    if contents.probes:
        every = tuple(layer.name for layer in contents.layers)
        rows = [
            [probe.name, probe.rows, "all" if probe.layers == every else ", ".join(probe.layers), probe.gallery or "-"]
            for probe in contents.probes
        ]
        print_table("probes", ["probe", "rows", "layers", "gallery"], rows)
    if contents.galleries:
        galleries = [[dataset or "-", kind] for dataset, kind in contents.galleries.items()]
        print_table("galleries", ["dataset", "what samples looked like"], galleries)
    if contents.skipped:
        print_table("skipped", ["layer", "reason"], contents.skipped.items())


def _print_layers(contents: MemoryInfo) -> None:
    columns = ["layer", "d_in", "d_out", "bias", "space", "slots", "distinct keys", "values", *GRADE_COLUMNS]
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
            *grade_entries(layer.grade),
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
