"""dualform verify: the reconstruction error of a memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from dualform.answers import Reconstruction
from dualform.methods import Answers
from dualform_client.cli.importance import Importance
from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_note, print_table
from dualform_client.cli.status_columns import STATUS_COLUMNS, status_entries
from dualform_client.cli.target import asks_target

_IMPORTANCE = Importance(("layer", "reconstruction error", "status"), last=("reason",))


@click.command()
@asks_target
@json_option
def verify(memory: Answers, as_json: bool) -> None:
    """Measure the reconstruction error of every layer.

    That is how far the weights rebuilt from the memory are from the trained ones, relative to how far training
    moved them.

    \b
    Example:
      dualform verify runs/demo
    """
    reconstructions = memory.verify()
    if as_json:
        print_json({layer: _reconstruction(reconstruction) for layer, reconstruction in reconstructions.items()})
        return
    rows = [[layer, c.reconstruction_error, *status_entries(c.status)] for layer, c in reconstructions.items()]
    columns = ["layer", "reconstruction error", *STATUS_COLUMNS]
    print_table("||W_T - rebuilt|| / ||W_T - W_0||, bias included", columns, rows, _IMPORTANCE)
    for layer, one in reconstructions.items():
        if one.rounding_share:
            moved = "of the distance lies in biases whose gradient was rounding alone: no slot has a part in it"
            print_note(f"{layer}: {one.rounding_share:.1%} {moved}.")


def _reconstruction(one: Reconstruction) -> dict[str, Any]:
    return {
        "reconstruction_error": one.reconstruction_error,
        "exact": one.exact,
        "reason": one.reason,
        "status": asdict(one.status),
        "rounding_share": one.rounding_share,
    }
