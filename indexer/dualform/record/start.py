"""What a training starts from, as its memory's header says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.errors import RecordingError
from dualform.record.blocks import name_alike
from dualform.record.key_form import HALVED
from dualform.record.optimizers import buffers_of, rule_of, united, why_no_rule
from dualform.record.owners import Owners
from dualform.record.plan import Plan
from dualform.record.state import arrays, state_of
from dualform.record.taps import Tap
from dualform.record.training_shard import TrainingShard
from dualform.rules import settings_of
from dualform.store.header import Header
from dualform.store.layer import Layer
from dualform.store.stored_optimizer import StoredOptimizer
from dualform.store.weights import Buffers


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
