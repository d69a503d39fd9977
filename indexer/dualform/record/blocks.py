"""The parameter blocks of tapped layers: one name for each parameter, and none that overlaps another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from dualform.errors import RecordingError
from dualform.record.taps import Tap
from dualform.store.parameter import Parameter, as_matrix


def name_alike(taps: Sequence[Tap]) -> None:
    """Give a tensor that several layers hold the name that it has in the first of them, for it is one parameter.

    A block that is all of its parameter says no ranges, so that those of tied layers are equal.
    """
    names: dict[int, str] = {}
    for tap in taps:
        tap.parameters = {
            replace(block.within(tensor.shape), name=names.setdefault(id(tensor), block.name)): tensor
            for block, tensor in tap.parameters.items()
        }


def check_blocks(model: nn.Module, taps: Sequence[Tap]) -> None:
    """Raises RecordingError for blocks that are no part of [W | b], of what the model does not hold under that name, or
    that overlap and are not the same.
    """
    names = model.state_dict().keys()
    held: dict[int, list[tuple[str, Parameter]]] = {}
    for tap in taps:
        for block, tensor in tap.parameters.items():
            if block.name not in names:
                raise RecordingError(
                    f"layer {tap.name!r} holds {block.name!r}, which is not in the model's state dict.",
                    hint="Name the tap's parameters as in model.state_dict().",
                )
            _check_shape(tap, block, tensor)
            held.setdefault(id(tensor), []).append((tap.name, block.within(tensor.shape)))
    for blocks in held.values():
        for number, (layer, block) in enumerate(blocks):
            for other, before in blocks[:number]:
                _check_apart(layer, block, other, before)


def _check_apart(layer: str, block: Parameter, other: str, before: Parameter) -> None:
    apart = (block.rows, block.columns, block.leading) != (before.rows, before.columns, before.leading)
    same = not apart and layer != other
    if block.overlaps(before) and not same:
        raise RecordingError(
            f"layers {other!r} and {layer!r} hold overlapping blocks of one parameter: {before.block_name} and "
            f"{block.block_name}.",
            hint="Let two layers hold the same block, or blocks that do not overlap.",
        )


def _check_shape(tap: Tap, block: Parameter, tensor: Tensor) -> None:
    bias = block.start == tap.d_in
    wanted = [tap.d_out] if bias else [tap.d_out, block.stop - block.start]
    (height, width), vector = as_matrix(tensor.shape, block.leading), tensor.dim() == 1
    if vector is not bias or (vector and (block.transposed or block.columns)) or not tensor.dim():
        found = list(tensor.shape)
    else:
        _check_ranges(tap, block, height, width)
        found = list(block.block_of(torch.empty(tensor.shape, device="meta")).shape)
        if found == wanted:
            return
    raise RecordingError(
        f"layer {tap.name!r}: {block.block_name} has shape {found} instead of {wanted}.",
        hint="Describe it as a range of a parameter's rows and columns with one row for each output of the layer.",
    )


def _check_ranges(tap: Tap, block: Parameter, height: int, width: int | None) -> None:
    for what, numbers, count in (("rows", block.rows, height), ("columns", block.columns, width or 0)):
        if numbers is not None and not 0 <= numbers[0] < numbers[1] <= count:
            raise RecordingError(
                f"layer {tap.name!r}: {block.block_name} is outside {block.name}, which has {count} {what}.",
                hint=f"Pass a start and a stop from 0 to {count}, the stop excluded.",
            )
