"""Stacks of matrices in one parameter, as those of experts, whose rows the model chooses.

A layer of a stack sees rows of the batch, or its tokens, where each call is as large as those of other layers; where
calls have other sizes, or some rows of a tensor were seen to be taken, the model chose. Then one member's matrices
share a space of that member's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from torch import Tensor

from dualform.record.lineage import Lineage
from dualform.record.signal import Signal
from dualform.record.spaces import own_name
from dualform.record.step_record import StepRecord
from dualform.record.taps.matrix_block import MatrixBlock
from dualform.store.parameter import Parameter


def blocks_of(path: str, parameter: Tensor, block: MatrixBlock) -> dict[str, MatrixBlock]:
    """By layer, the block; of a stack of matrices, of which a product was seen with one, those of all."""
    height = parameter.shape[-2]
    one = parameter.dim() > 2 and block.leading == parameter.dim() - 1 and block.columns == (0, parameter.shape[-1])
    if one and block.rows[0] % height == 0 and block.rows[1] - block.rows[0] == height:
        numbers = product(*map(range, parameter.shape[:-2]))
        return {
            f"{path}[{', '.join(map(str, own))}]": replace(block, rows=(number * height, (number + 1) * height))
            for number, own in enumerate(numbers)
        }
    place = Parameter(path, 0, 0, block.rows, block.transposed, block.columns, block.leading)
    return {place.within(parameter.shape).block_name: block}


def routed_spaces(stacks: Mapping[str, Sequence[str]], record: StepRecord) -> dict[str, str]:
    """Layer -> space, of the stacks whose rows the model chooses, by what was received in a first step.

    `stacks`: by parameter, its layers in order.
    """
    calls = dict(record.leading())
    members = {layer for layers in stacks.values() for layer in layers}
    known = {size for layer, sizes in calls.items() if layer not in members for size in sizes}
    if record.metadata.rows is not None:
        known.add((record.metadata.rows,))
    chosen = {
        parameter: layers
        for parameter, layers in stacks.items()
        if any(_is_chosen(signal) for layer in layers for signal in record.calls(layer))
        or (known and not known.issuperset(size for layer in layers for size in calls.get(layer, ())))
    }
    found: dict[str, str] = {}
    for parameter, layers in chosen.items():
        module = parameter.rpartition(".")[0] or parameter
        beside = [other for other in chosen if (other.rpartition(".")[0] or other) == module]
        alike = all([calls.get(layer) for layer in chosen[other]] == [calls.get(x) for x in layers] for other in beside)
        for number, layer in enumerate(layers):
            found[layer] = own_name(f"{module}_{number}" if alike else layer, set())
    return found


def _is_chosen(signal: Signal) -> bool:
    return isinstance(signal.rows, Lineage) and not signal.rows.steady
