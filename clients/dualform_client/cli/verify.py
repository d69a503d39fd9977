"""dualform verify: the certificate of a memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from dualform.answers import Certificate
from dualform.methods import Answers
from dualform_client.cli.grades import GRADE_COLUMNS, grade_entries
from dualform_client.cli.importance import Importance
from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_note, print_table
from dualform_client.cli.target import asks_target

_IMPORTANCE = Importance(("layer", "relative error", "grade"), last=("reason",))


@click.command()
@asks_target
@json_option
def verify(memory: Answers, as_json: bool) -> None:
    """Rebuild each layer's weights, and tell how far off they are.

    This is the certificate: the distance from the trained weights, of the distance that these moved.

    \b
    Example:
      dualform verify runs/demo
    """
    certificates = memory.verify()
    if as_json:
        print_json({layer: _certificate(certificate) for layer, certificate in certificates.items()})
        return
    rows = [[layer, c.relative_error, *grade_entries(c.grade)] for layer, c in certificates.items()]
    columns = ["layer", "relative error", *GRADE_COLUMNS]
    print_table("||W_T - rebuilt|| / ||W_T - W_0||, bias included", columns, rows, _IMPORTANCE)
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
