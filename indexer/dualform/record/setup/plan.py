"""What is recorded and what it starts from: options, parameter blocks, the initial state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.errors import RecordingError
from dualform.record.layout import HALVED
from dualform.record.ranks import TrainingShard, is_sharded, whole
from dualform.record.setup.budget import BudgetPlan
from dualform.record.setup.optimizers import Owners, buffers_of, rule_of, united, why_no_rule
from dualform.record.setup.resume import Resumption
from dualform.record.sink import Sink
from dualform.record.taps import Tap
from dualform.rules import settings_of
from dualform.store.batch import Header, Mark, digest_of, named_buffers
from dualform.store.layer import Layer, Parameter, StoredOptimizer, as_matrix
from dualform.store.weights import Buffers


@dataclass
class Progress:
    """Of one recording, which everything that belongs to it looks at."""

    steps: int = 0
    """Steps recorded so far."""
    begun: bool = False
    """Whether there is a memory: until then what cannot be recorded is refused, later it is a defect."""

    @property
    def last(self) -> int:
        """The last recorded step; 0 before there is one."""
        return max(self.steps - 1, 0)


@dataclass(frozen=True)
class Plan:
    """What is to be recorded, and where to."""

    model: nn.Module
    owners: Owners
    """The optimizers, and which parameters each of them updates."""
    path: Path
    taps: Sequence[Tap]
    skipped: dict[str, str]
    """Layers that are not recorded, and why."""
    sink: Callable[[Header], Sink]
    spaces: Mapping[str, str] = field(default_factory=dict)
    """Names or patterns of layers -> space."""
    routed: Sequence[str] = ()
    """Names or patterns of layers whose rows the model chooses."""
    keys: bool = True
    label_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    resumed: Resumption | None = None
    """What the training goes on from; None for one that begins."""
    ranks: TrainingShard | None = None
    """This process among those of a training that several record together."""
    compiled: Sequence[str] = ()
    """Parts of the model, by name, whose calls torch.compile was asked to compile."""
    budget: BudgetPlan | None = None
    """What the memory may take on disk; None for whatever it needs."""
    sharded: bool = False
    """Whether each rank holds a part of the model alone."""
    keep_random: bool = False
    """Whether to store the states of the random number generators."""


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


def state_of(model: nn.Module, shard: TrainingShard | None = None) -> dict[str, NDArray[Any]]:
    """Every tensor of the state dict, copied; `shard` and what it raises: as `arrays` says."""
    held = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    return arrays(held, shard)


def arrays(tensors: Mapping[str, Tensor], shard: TrainingShard | None = None) -> dict[str, NDArray[Any]]:
    """The tensors' values, copied; bfloat16, which NumPy lacks, as float32.

    Those that are sharded over processes are put together on the first one, the others get their own rows. All of them
    call it then, with the same names; raises RecordingError where they do not.
    """
    parted = {name: whole(tensor, shard) for name, tensor in tensors.items() if shard and is_sharded(tensor)}
    return {name: np.array(_plain(parted.get(name, tensor).detach().cpu())) for name, tensor in tensors.items()}


def mark_of(model: nn.Module, buffers: Buffers, step: int, updates: tuple[int, ...]) -> Mark:
    """How a training stands once so many steps were taken; one tensor at a time is copied."""
    held = ((name, value) for name, value in model.state_dict().items() if isinstance(value, Tensor))
    weights = digest_of((name, arrays({name: value})[name]) for name, value in held)
    return Mark(step, weights, digest_of(named_buffers(buffers)), updates)


def _plain(tensor: Tensor) -> NDArray[Any]:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


class Start:
    """The network before the first recorded step: what was trained earlier is part of W_0."""

    def __init__(
        self,
        model: nn.Module,
        owners: Owners,
        taps: Sequence[Tap],
        halved: Mapping[str, str],
        initial: Mapping[str, NDArray[Any]] | None = None,
        ranks: TrainingShard | None = None,
    ) -> None:
        """`halved`: as Header says; `initial`: the model's state dict, where it was taken before; `ranks`: this process
        among those that the model may be sharded over. Raises RecordingError where they have parted.
        """
        name_alike(taps)
        self._halved = halved
        self._owners, self._ranks = owners, ranks
        self._rules = [rule_of(optimizer) for optimizer in owners.optimizers]
        self._optimizers = [self._stored(number, taps) for number in range(len(self._rules))]
        self.initial: Mapping[str, NDArray[Any]] = state_of(model, ranks) if initial is None else initial
        """Every tensor of the state dict; of those that are sharded, the rows of this process, or all on the first."""
        self.aliases = {name: known for name, known in aliases_of(model, taps).items() if name in self.initial}
        """Further names of recorded parameters in the state dict -> the name they are recorded under."""
        self._parameters = {parameter.name: tensor for tap in taps for parameter, tensor in tap.parameters.items()}
        self.buffers: Buffers = self.buffers_now()
        """What the optimizer keeps, by parameter and the optimizer's own name for it, of those that have any."""

    def _stored(self, number: int, taps: Sequence[Tap]) -> StoredOptimizer:
        """An optimizer as the memory names it, with its blocks of all layers that may be recorded."""
        optimizer, rule = self._owners.optimizers[number], self._rules[number]
        held = [
            place.block_name for tap in taps for place, own in tap.parameters.items() if self._owners.of(own) == number
        ]
        blocks = tuple(dict.fromkeys(held)) if number else ()
        name = "" if rule is None else rule.name
        return StoredOptimizer(type(optimizer).__name__, name, why_no_rule(optimizer), blocks)

    @property
    def why_no_rule(self) -> Sequence[str]:
        """Why weights cannot be rebuilt, of each optimizer that has no rule, as the memory will say it."""
        return [optimizer.reason for optimizer in self._optimizers if optimizer.reason]

    def buffers_now(self) -> Buffers:
        """As `buffers`, at this moment."""
        found: dict[str, dict[str, NDArray[Any]]] = {}
        for number, (optimizer, rule) in enumerate(zip(self._owners.optimizers, self._rules, strict=True)):
            own = {name: tensor for name, tensor in self._parameters.items() if self._owners.of(tensor) == number}
            kinds = () if rule is None else (*rule.buffers, *rule.statistics)
            places = [(name, kind) for name in own for kind in kinds]
            held = [] if rule is None else buffers_of(optimizer, rule, own.values())
            for (name, kind), buffer in zip(places, held, strict=True):
                if buffer is not None:
                    tensor = (
                        buffer
                        if isinstance(buffer, Tensor)
                        else torch.tensor(float(buffer), dtype=torch.float64, device="cpu")
                    )
                    found.setdefault(name, {}).update(arrays({kind: tensor}, self._ranks))
        return found

    def header(
        self, path: Path, layers: Sequence[Layer], skipped: Mapping[str, str], label_names: Mapping[str, Sequence[str]]
    ) -> Header:
        first, *others = self._optimizers
        return Header(
            path=path,
            layers=layers,
            skipped=skipped,
            optimizer=first.name,
            rule=first.rule,
            settings=united([settings_of(optimizer.rule) for optimizer in self._optimizers]),
            reason=first.reason,
            further_optimizers=others,
            initial=self.initial,
            buffers=self.buffers,
            label_names=label_names,
            aliases=self.aliases,
            halved=self._halved,
        )


def aliases_of(model: nn.Module, taps: Sequence[Tap]) -> dict[str, str]:
    """Names under which a model holds a recorded parameter once more -> the recorded name.

    A name counts where it holds the very same tensor object: a copy with the same numbers is a parameter of its own.
    """
    recorded = {id(tensor): place.name for tap in taps for place, tensor in tap.parameters.items()}
    held = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    return {name: recorded[id(tensor)] for name, tensor in held if recorded.get(id(tensor), name) != name}


def layers_again(layers: Sequence[Layer], plan: Plan) -> list[Layer]:
    """The layers of a training that is resumed, as they were recorded before.

    Raises RecordingError where one is not recorded now, or otherwise.
    """
    taps = {tap.name: tap for tap in plan.taps}
    for layer in layers:
        tap = taps.get(layer.name)
        what = f"layer {layer.name!r} was recorded before the training was resumed, and is not now"
        if tap is not None:
            now = (tap.d_in, tap.d_out, tuple(tap.parameters), tap.values, plan.keys)
            if now == (layer.d_in, layer.d_out, tuple(layer.parameters), layer.values, layer.keys):
                continue
            what = f"layer {layer.name!r} is not what was recorded before the training was resumed"
        raise RecordingError(
            f"{what}.", hint="Resume with the same network and arguments, or record into a new folder."
        )
    return list(layers)


def layer_of(tap: Tap, space: str, batch_dim: int, repeats: bool, keys: bool, dtype: torch.dtype) -> Layer:
    """How the manifest names a tapped layer; `batch_dim`: the axis of its keys that is the batch; `dtype`: what the
    training computed it in.
    """
    return Layer(
        name=tap.name,
        space=space,
        d_in=tap.d_in,
        d_out=tap.d_out,
        parameters=tuple(tap.parameters),
        source=tap.key_form.source_of(dtype) if keys else "none",
        repeats=repeats and keys,
        values=tap.values,
        dtype=HALVED.get(dtype, "float32"),
        value_source=HALVED.get(dtype, "rows") if tap.values and keys else "rows",
        reason=tap.why_no_values,
        geometry=tap.key_form.geometry if keys else {},
        groups=tap.key_form.groups,
        batch_dim=batch_dim,
    )
