"""What is recorded and what it starts from: options, parameter blocks, the initial state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.errors import RecordingError
from dualform.record.layout import HALVED
from dualform.record.ranks import TrainingShard, is_sharded, whole
from dualform.record.setup.budget import BudgetPlan
from dualform.record.setup.optimizers import Owners, buffers_of, halved_parameters, rule_of, united, why_no_rule
from dualform.record.setup.resume import Resumption
from dualform.record.sink import Sink
from dualform.record.taps import Tap
from dualform.rules import settings_of
from dualform.store.batch import Header, Mark, digest_of, named_buffers
from dualform.store.layer import Layer, Parameter, StoredOptimizer, as_matrix
from dualform.store.weights import Buffers


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

    @cached_property
    def valued(self) -> set[str]:
        """The layers that have values."""
        return {tap.name for tap in self.taps if tap.values}

    @property
    def number(self) -> int:
        """Of this process; the first one, 0, speaks for all."""
        return 0 if self.ranks is None else self.ranks.number


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


StateDict: TypeAlias = Mapping[str, NDArray[Any]]
"""Every tensor of a model's state dict, copied."""


def state_of(model: nn.Module, shard: TrainingShard | None = None) -> dict[str, NDArray[Any]]:
    """Every tensor of the state dict, copied; `shard` and what it raises: as `arrays` says."""
    return arrays(_tensors(model), shard)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def arrays(tensors: Mapping[str, Tensor], shard: TrainingShard | None = None) -> dict[str, NDArray[Any]]:
    """The tensors' values, copied; bfloat16, which NumPy lacks, as float32.

    Those that are sharded over processes are put together on the first one, the others get their own rows. All of them
    call it then, with the same names; raises RecordingError where they do not.
    """
    parted = {name: whole(tensor, shard) for name, tensor in tensors.items() if shard and is_sharded(tensor)}
    return {name: np.array(_plain(parted.get(name, tensor).detach().cpu())) for name, tensor in tensors.items()}


def _plain(tensor: Tensor) -> NDArray[Any]:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


class InitialState:
    """The network before the first recorded step: what was trained earlier is part of W_0."""

    def __init__(self, plan: Plan, initial: StateDict | None = None) -> None:
        """`initial`: the model's state dict, where it was taken before. Raises RecordingError where ranks that hold
        parts of the model have parted.
        """
        taps, self._plan = plan.taps, plan
        name_alike(taps)
        # Ranks add gradients up in half precision, in an order that nobody knows.
        self.halved = halved_parameters(plan.owners, taps) if plan.ranks is None else {}
        """As Header says."""
        self._shard = plan.ranks if plan.sharded else None
        self._rules = [rule_of(optimizer) for optimizer in plan.owners.optimizers]
        self._optimizers = [self._stored(number) for number in range(len(self._rules))]
        self.initial: StateDict = state_of(plan.model, self._shard) if initial is None else initial
        """Of tensors that are sharded, the rows of this process, or all on the first."""
        self._parameters = {block.name: tensor for tap in taps for block, tensor in tap.parameters.items()}
        recorded = {id(tensor): block.name for tap in taps for block, tensor in tap.parameters.items()}
        named = (plan.model.named_parameters, plan.model.named_buffers)
        held = [(name, recorded.get(id(own), name)) for every in named for name, own in every(remove_duplicate=False)]
        self.aliases = {name: known for name, known in held if known != name and name in self.initial}
        """Names under which the state dict has a recorded parameter's own tensor once more -> the recorded name."""
        self.buffers: Buffers = self.buffers_now()
        """What the optimizers keep, by parameter and the optimizer's own name for it, of those that have any."""

    @property
    def why_no_rule(self) -> Sequence[str]:
        """Why weights cannot be rebuilt, of each optimizer that has no rule, as the memory will say it."""
        return [optimizer.reason for optimizer in self._optimizers if optimizer.reason]

    def weights_now(self) -> StateDict:
        """As `initial`, at this moment; raises as the constructor."""
        return state_of(self._plan.model, self._shard)

    def buffers_now(self) -> Buffers:
        """As `buffers`, at this moment."""
        found: dict[str, dict[str, NDArray[Any]]] = {}
        for name, tensor in self._parameters.items():
            owner = self._plan.owners.of(tensor)
            rule = self._rules[owner]
            kinds = () if rule is None else (*rule.buffers, *rule.statistics)
            kept = [] if rule is None else buffers_of(self._plan.owners.optimizers[owner], rule, [tensor])
            numbers = {
                kind: own if isinstance(own, Tensor) else torch.tensor(float(own), dtype=torch.float64, device="cpu")
                for kind, own in zip(kinds, kept, strict=True)
                if own is not None
            }
            if numbers:
                found[name] = arrays(numbers, self._shard)
        return found

    def mark(self, step: int, updates: tuple[int, ...]) -> Mark:
        """How the training stands once so many steps were taken; one tensor at a time is copied."""
        weights = digest_of((name, arrays({name: own})[name]) for name, own in _tensors(self._plan.model).items())
        return Mark(step, weights, digest_of(named_buffers(self.buffers_now())), updates)

    def header(self, layers: Sequence[Layer]) -> Header:
        """Of a memory that begins with these layers."""
        plan = self._plan
        first, *others = self._optimizers
        return Header(
            path=plan.path,
            layers=layers,
            skipped=dict(plan.skipped),
            optimizer=first.name,
            rule=first.rule,
            settings=united([settings_of(own.rule) for own in self._optimizers]),
            reason=first.reason,
            further_optimizers=others,
            initial=self.initial,
            buffers=self.buffers,
            label_names=plan.label_names,
            aliases=self.aliases,
            halved=self.halved,
            sampling=None if plan.budget is None else plan.budget.rule,
        )

    def _stored(self, number: int) -> StoredOptimizer:
        """An optimizer as the memory names it, with its blocks of all layers that may be recorded."""
        owners, rule = self._plan.owners, self._rules[number]
        blocks = {
            block.block_name: None
            for tap in self._plan.taps
            for block, own in tap.parameters.items()
            if number and owners.of(own) == number
        }
        optimizer = owners.optimizers[number]
        name = "" if rule is None else rule.name
        return StoredOptimizer(type(optimizer).__name__, name, why_no_rule(optimizer), tuple(blocks))


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
