"""dualform info, sql, verify: what a memory holds, and how well."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from dualform.answers import Certificate, Grade, LayerInfo, MemoryInfo
from dualform.methods import Answers
from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_line, print_note, print_table
from dualform_client.cli.target import asks_target

GRADED = ("grade", "distance", "rounding", "reason")
"""How a grade is shown: distance and rounding are relative to the distance that the weights moved."""


@click.command()
@asks_target
@json_option
def info(memory: Answers, as_json: bool) -> None:
    """Layers, slots, datasets, probes, and what was skipped and why.

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
        rows = [[probe.name, probe.rows, ", ".join(probe.layers)] for probe in contents.probes]
        print_table("probes", ["probe", "rows", "layers"], rows)
    if contents.skipped:
        print_table("skipped", ["layer", "reason"], contents.skipped.items())


def _print_layers(contents: MemoryInfo) -> None:
    columns = ["layer", "d_in", "d_out", "bias", "space", "slots", "distinct keys", "values", *GRADED]
    rows = [
        [
            _named(layer),
            layer.d_in,
            layer.d_out,
            _yes(layer.bias),
            layer.space,
            layer.slots,
            layer.distinct_keys,
            _yes(layer.values),
            *_graded(layer.grade),
        ]
        for layer in contents.layers
    ]
    print_table("layers", columns, rows)


def _named(layer: LayerInfo) -> str:
    """A layer's name, and those of its views in short."""
    if not layer.views:
        return layer.name
    first, *_, last = layer.views
    return f"{layer.name} ({first} … {last})"


def _graded(grade: Grade) -> list[Any]:
    return [str(grade), grade.error, grade.rounding, grade.reason]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


@click.command()
@asks_target
@click.argument("statement")
@json_option
def sql(memory: Answers, statement: str, as_json: bool) -> None:
    """One read-only SELECT over slots, steps and the other tables.

    \b
    Example:
      dualform sql runs/demo "SELECT dataset, count(*) AS slots FROM slots GROUP BY dataset"
    """
    columns = memory.sql(statement)
    if as_json:
        print_json({"columns": list(columns), "rows": columns.records()})
        return
    print_table(f"{columns.rows} rows", list(columns), [list(record.values()) for record in columns.records()])


@click.command()
@asks_target
@json_option
def verify(memory: Answers, as_json: bool) -> None:
    """The certificate: how far the weights rebuilt from the memory are from the trained ones, per layer.

    \b
    Example:
      dualform verify runs/demo
    """
    certificates = memory.verify()
    if as_json:
        print_json({layer: _certificate(certificate) for layer, certificate in certificates.items()})
        return
    rows = [[layer, c.relative_error, *_graded(c.grade)] for layer, c in certificates.items()]
    print_table("||W_T - rebuilt|| / ||W_T - W_0||, bias included", ["layer", "relative error", *GRADED], rows)
    for layer, one in certificates.items():
        if one.rounding_share:
            moved = "of the distance lies in biases whose gradient was rounding alone: no slot has a part in it"
            print_note(f"{layer}: {one.rounding_share:.1%} {moved}.")


def _certificate(one: Certificate) -> dict[str, Any]:
    return {
        "relative_error": one.relative_error,
        "exact": one.exact,
        "reason": one.reason,
        "grade": asdict(one.grade),
        "rounding_share": one.rounding_share,
    }
