"""dualform info, sql, verify: what a memory holds, and how well."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from dualform.answers import Certificate, MemoryInfo
from dualform.methods import Answers
from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_line, print_table
from dualform_client.cli.target import asks_target


@click.command()
@asks_target
@json_option
def info(memory: Answers, as_json: bool) -> None:
    """Layers, slots, datasets, probes, and what was skipped and why.

    \b
    Example:
      dualform info 127.0.0.1:50051
    """
    told = memory.info()
    if as_json:
        layers = [{**asdict(layer), "exact": layer.exact, "reason": layer.reason} for layer in told.layers]
        print_json({**asdict(told), "layers": layers})
        return
    slots = ", ".join(f"{count} {space} slots" for space, count in told.slots.items())
    state = "not finished" if told.recording else "finished"
    print_line(f"{told.steps} steps of {told.optimizer}, {slots}; snapshot {told.snapshot}, {state}")
    if told.cut_off:
        print_line(told.cut_off)
    _print_layers(told)
    if told.datasets:
        print_table("datasets", ["dataset", "slots"], told.datasets.items())
    print_table("slot columns", ["column", "type"], told.columns.items())
    if told.probes:
        rows = [[probe.name, probe.rows, ", ".join(probe.layers)] for probe in told.probes]
        print_table("probes", ["probe", "rows", "layers"], rows)
    if told.skipped:
        print_table("skipped", ["layer", "reason"], told.skipped.items())


def _print_layers(told: MemoryInfo) -> None:
    columns = ["layer", "d_in", "d_out", "bias", "space", "slots", "distinct keys", "values", "grade", "reason"]
    rows = [
        [
            layer.name,
            layer.d_in,
            layer.d_out,
            _yes(layer.bias),
            layer.space,
            layer.slots,
            layer.distinct_keys,
            _yes(layer.values),
            str(layer.grade),
            layer.reason,
        ]
        for layer in told.layers
    ]
    print_table("layers", columns, rows)


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
    rows = [[layer, c.relative_error, str(c.grade), c.reason] for layer, c in certificates.items()]
    print_table(
        "||W_T - rebuilt|| / ||W_T - W_0||, bias included", ["layer", "relative error", "grade", "reason"], rows
    )


def _certificate(one: Certificate) -> dict[str, Any]:
    return {
        "relative_error": one.relative_error,
        "exact": one.exact,
        "reason": one.reason,
        "grade": asdict(one.grade),
    }
