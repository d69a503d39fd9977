"""What taps of recurrent layers share: one slot per token, whose key is the state before it and its input, or one.

Shapes: B sequences of L tokens, X inputs, H hidden units; `...` is [B, L], [L, B] or [L] as the module is called.

    key  =  [h_(t-1); x_t]                         [..., H + X]

The states are the layer's own outputs, one token later, and the initial one; nothing is computed again. Keys lie as
the module's output does, so that they align with those of a linear layer behind it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence

from dualform.errors import RecordingError
from dualform.record.sharded_parameters import is_sharded
from dualform.record.taps.module_tap import ModuleTap
from dualform.record.taps.tap import Call


class TappedRecurrent(ModuleTap):
    """What nn.LSTM and nn.GRU share."""

    module: nn.RNNBase

    @classmethod
    def batch_dim_of(cls, module: nn.Module) -> int | None:
        assert isinstance(module, nn.RNNBase)
        return 0 if module.batch_first else 1

    @classmethod
    def refusal(cls, module: nn.Module) -> str:
        assert isinstance(module, nn.RNNBase)
        kind = module.mode
        if module.num_layers > 1:
            return (
                f"it stacks {module.num_layers} layers and shows only the last one's states: use one nn.{kind} for each"
            )
        if module.bidirectional:
            return f"it is bidirectional: use one nn.{kind} for each direction, and flip the input of the second"
        if module.proj_size:
            return "it projects its states (proj_size): use one without it and an nn.Linear"
        if parametrize.is_parametrized(module):
            return "a weight of it is parametrized: the optimizer does not update the weight itself"
        if not all(isinstance(getattr(module, name), nn.Parameter) for name in module._flat_weights_names):
            return "a weight of it is computed from others"
        if any(map(is_sharded, module.parameters())):
            return "it is sharded over processes, and its error signals are computed from whole weights"
        return cls.other_forward(module)

    @staticmethod
    @abstractmethod
    def _states(given: Any) -> tuple[Tensor, ...]:
        """The states among a module's arguments or results: h, then c where there is one; [1, B, H] or [1, H]."""

    def call_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Call:
        argument, given = self._arguments(args, kwargs)
        if isinstance(argument, PackedSequence):
            raise RecordingError(
                f"layer {self.name!r} was given a PackedSequence, which cannot be recorded.",
                hint="Pass the padded tensor and recorder.step(mask=…), or leave the layer out with layers=.",
            )
        result, last = output[0], self._states(output[1])
        time = self.time_of(argument)
        first = tuple(state.detach().transpose(0, time) for state in self._states(given)) if given is not None else ()
        keys = _keys(argument, result, first[:1], time)
        return Call(keys, (result, *last), raw=False, kept=first[1:], argument=argument)

    def output_of(self, outputs: tuple[Tensor, ...]) -> Any:
        result, *states = outputs
        return result, states[0] if len(states) == 1 else tuple(states)

    def time_of(self, tokens: Tensor) -> int:
        """The axis that tokens lie along."""
        return 1 if tokens.dim() == 3 and self.module.batch_first else 0

    @staticmethod
    def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Input and initial state."""
        given = dict(zip(("input", "hx"), args, strict=False)) | kwargs
        return given["input"], given.get("hx")


def _keys(argument: Tensor, result: Tensor, first: Sequence[Tensor], time: int) -> Tensor:
    """[..., H + X], a copy: unlike a layer's input, its output may be written over before backward.

    `first`: the initial state with its own axis of length 1 where tokens lie; none where it is zero.
    """
    hidden, length = result.shape[-1], result.shape[time]
    with torch.no_grad():
        key = result.new_empty((*result.shape[:-1], hidden + argument.shape[-1]))
        key[..., hidden:] = argument
        before = key[..., :hidden]
        before.narrow(time, 1, length - 1).copy_(result.narrow(time, 0, length - 1))
        if first:
            before.narrow(time, 0, 1).copy_(first[0])
        else:
            before.narrow(time, 0, 1).zero_()
    return key
