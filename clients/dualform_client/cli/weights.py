"""dualform weights: the network's weights, masked or as of an earlier step, in a file."""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from dualform.answers import Weights
from dualform.answers.cancellation import WHAT_A_MASK_MEANS
from dualform.errors import FolderError
from dualform.methods import Answers
from dualform_client.cli.mask_notes import cancellation, describe, describe_status, figures, one_mask
from dualform_client.cli.options import (
    allow_inexact_option,
    at_step_option,
    json_option,
    where_option,
    where_space_option,
)
from dualform_client.cli.output_file import check_output_file
from dualform_client.cli.printing import print_json, print_note, print_table
from dualform_client.cli.target import asks_target


@click.command()
@asks_target
@where_option
@where_space_option
@at_step_option
@allow_inexact_option
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The .safetensors file to write.")
@click.option("--force", is_flag=True, help="Replace the file where it exists.")
@json_option
def weights(
    memory: Answers,
    where: str | None,
    where_space: tuple[tuple[str, str], ...],
    at_step: int | None,
    allow_inexact: bool,
    out: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Write the weights under a mask, or as of an earlier step.

    The file is for load_state_dict, under the model's own parameter names.

    A mask is arithmetic removal from this training's sum, not retraining.

    \b
    Example:
      dualform weights runs/demo --at-step 100 --out earlier.safetensors
      dualform weights 127.0.0.1:50051 --where "label <> 3" --out masked.safetensors
    """
    check_output_file(out, force, "out")
    masks = one_mask(where, where_space)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "not recorded")  # said below, for a server's answer too
        state = memory.weights(masks, at_step, allow_inexact)
    removed = cancellation(memory, masks, at_step, allow_inexact=allow_inexact)
    _save(state, out)
    note = "" if masks is None else f"{WHAT_A_MASK_MEANS} {describe(removed)}".strip()
    if as_json:
        masked = {} if masks is None else {**figures(removed), "note": note}
        print_json({"out": str(out), **_report(state), **masked})
        return
    print_table(f"{out}", ["parameter", "shape"], [[name, list(array.shape)] for name, array in state.arrays.items()])
    for layer, status in state.statuses.items():
        if not status.exact or state.unrecorded_change[layer] > 0:
            print_note(f"{layer}: {describe_status(status, state.unrecorded_change[layer])}")
    if state.remark and not (state.ended and masks is None and at_step is None):
        print_note(f"{state.remark[0].upper()}{state.remark[1:]}.")
    if state.others and masks is not None:
        print_note(f"No mask moves what no slot explains: {', '.join(state.others)}.")
    if note:
        print_note(note)


def _report(state: Weights) -> dict[str, Any]:
    return {
        "parameters": {name: list(array.shape) for name, array in state.arrays.items()},
        "status": {layer: asdict(status) for layer, status in state.statuses.items()},
        "unrecorded_change": state.unrecorded_change,
        "kept": state.kept,
        "not_recorded": list(state.not_recorded),
        "others": list(state.others),
        "ended": state.ended,
    }


def _save(state: Weights, out: Path) -> None:
    """Under a temporary name first: a run that is cut short leaves no half file behind under the name asked for."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    partial = out.with_name(f".{out.name}.partial")
    try:
        # Clones, because the format refuses tensors that share their storage, as tied weights do.
        save_file({name: tensor.detach().contiguous().clone() for name, tensor in state.items()}, partial)
        os.replace(partial, out)
    except SafetensorError as error:  # which has its own for a full disk, and for a place that takes no files
        raise FolderError(f"{out} cannot be written: {error}.", field="out") from None
    finally:
        with suppress(OSError):
            partial.unlink()
