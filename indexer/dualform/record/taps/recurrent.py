"""Recurrent layers: nn.LSTM and nn.GRU.

The taps for nn.GRU: its three products are layers, `<module>.gates`, `.candidate_input` and `.candidate_hidden`.

Shapes: L tokens, X inputs, H hidden units; `...` is [B], or nothing for an unbatched call.

    [r; z]_t  =  [W_hh | W_ih]_rz [h_(t-1); x_t] + b_hh + b_ih      gates: both after a sigmoid
    u_t  =  W_ih_n x_t + b_ih_n                                     candidate_input
    v_t  =  W_hh_n h_(t-1) + b_hh_n                                 candidate_hidden
    n_t = tanh(u_t + r_t v_t)        h_t = (1 - z_t) n_t + z_t h_(t-1)

The reset gate stands between v and the sum that it enters, so that u and v have error signals of their own, and one
product of both could not be remembered. As with an LSTM, torch's own backward pass shows none of the error signals:
they are computed again from the states and from the gradients that reached the outputs, all three at once.

The tap for nn.LSTM: keys [h_(t-1); x_t], values at the pre-activations of the gates.

Shapes: L tokens, H hidden units; `...` is [B], or nothing for an unbatched call.

    [i; f; g; o]_t  =  [W_hh | W_ih] [h_(t-1); x_t] + b_hh + b_ih        i, f, o after a sigmoid, g after tanh
    c_t = f_t c_(t-1) + i_t g_t        h_t = o_t tanh(c_t)

That product is the linear layer whose training is remembered. Its error signal shows nowhere in torch's own backward
pass, so it is computed again from the keys, which hold every state, and from the gradients that reached the outputs.

What taps of recurrent layers share: one slot per token, whose key is the state before it and its input, or one.

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
from dualform.record.ranks import is_sharded
from dualform.record.taps.autograd import hand_over
from dualform.record.taps.tap import Call, Listener, ModuleTap, Tap
from dualform.store.layer import Parameter, Range


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


class TappedLSTM(TappedRecurrent, module_type=nn.LSTM):
    def __init__(self, name: str, module: nn.RNNBase, values: bool = True) -> None:
        super().__init__(name, module, values)
        hidden = module.hidden_size
        self.d_in, self.d_out = hidden + module.input_size, 4 * hidden
        places = {"weight_hh_l0": (0, hidden), "weight_ih_l0": (hidden, self.d_in)}
        if module.bias:
            places |= dict.fromkeys(("bias_hh_l0", "bias_ih_l0"), (self.d_in, self.d_in + 1))
        self.parameters = {
            Parameter(self.parameter_name(own), *place): getattr(module, own) for own, place in places.items()
        }

    @staticmethod
    def _states(given: Any) -> tuple[Tensor, ...]:
        return tuple(given)

    @torch.no_grad()
    def error_of(self, key: Tensor, kept: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
        # In the training's own precision at best, and never in the halved one of an autocast around it.
        dtype, time = torch.promote_types(key.dtype, torch.float32), self.time_of(key)
        of_output, *of_states = [None if gradient is None else gradient.to(dtype) for gradient in gradients]
        with torch.autocast(key.device.type, enabled=False):
            weights = [p.to(dtype) for place, p in self.parameters.items() if place.start < self.d_in]
            biases = [p.to(dtype) for place, p in self.parameters.items() if place.start == self.d_in]
            gates = key.to(dtype) @ torch.cat(weights, 1).T
            for bias in biases:
                gates += bias
            gates = gates.transpose(0, time)
            empty = gates.new_zeros(*gates.shape[1:-1], self.module.hidden_size)
            cell = kept[0].transpose(0, time)[0].to(dtype) if kept else empty
            errors = _lstm_errors(
                gates,
                cell,
                weights[0],
                None if of_output is None else of_output.transpose(0, time),
                [None if gradient is None else gradient[0] for gradient in of_states],
            )
        return errors.transpose(0, time)


def _lstm_errors(
    gates: Tensor, cell: Tensor, weight: Tensor, of_output: Tensor | None, of_states: Sequence[Tensor | None]
) -> Tensor:
    """[L, ..., 4 H]: the gradients of `gates` [L, ..., 4 H], the sums before any sigmoid.

    `cell` [..., H]: c_0; `weight` [4 H, H]: W_hh; `of_output` [L, ..., H] and `of_states` [..., H], of h_L and c_L: the
    gradients that came from outside; None is zero.
    """
    i, f, g, o = gates.chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cells = [cell]
    for token in range(len(gates)):
        cells.append(f[token] * cells[-1] + i[token] * g[token])
    squashed, before = torch.stack(cells[1:]).tanh(), torch.stack(cells[:-1])
    to_cell = o * (1 - squashed * squashed)
    through_cell = torch.stack([g * i * (1 - i), before * f * (1 - f), i * (1 - g * g)], -2)
    through_output = squashed * o * (1 - o)
    errors = gates.new_empty(*gates.shape[:-1], 4, gates.shape[-1] // 4)
    of_hidden, of_cell = (torch.zeros_like(cell) if gradient is None else gradient for gradient in of_states)
    for token in reversed(range(len(gates))):
        if of_output is not None:
            of_hidden = of_hidden + of_output[token]
        of_cell = of_cell + of_hidden * to_cell[token]
        errors[token, ..., :3, :] = of_cell.unsqueeze(-2) * through_cell[token]
        errors[token, ..., 3, :] = of_hidden * through_output[token]
        of_hidden, of_cell = errors[token].flatten(-2) @ weight, of_cell * f[token]
    return errors.flatten(-2)


class TappedGRU(TappedRecurrent, module_type=nn.GRU):
    """Finds the three layers of a module, which itself is none, and hands its calls on to them."""

    def __init__(self, name: str, module: nn.RNNBase, values: bool = True) -> None:
        super().__init__(name, module, values)
        self.parts: list[_Part] = []
        """Those that are attached."""
        self._last: _Backward | None = None

    @classmethod
    def taps_of(cls, name: str, module: nn.Module, values: bool = True) -> Sequence[Tap]:
        assert isinstance(module, nn.GRU)
        hidden, inputs = module.hidden_size, module.input_size
        both = (0, hidden + inputs)
        gates, candidate = (0, 2 * hidden), (2 * hidden, 3 * hidden)
        whole = cls(name, module, values)
        return [
            _Part(whole, "gates", both, rows=gates, errors=(0, 2 * hidden)),
            _Part(whole, "candidate_input", (hidden, both[1]), rows=candidate, errors=(2 * hidden, 3 * hidden)),
            _Part(whole, "candidate_hidden", (0, hidden), rows=candidate, errors=(3 * hidden, 4 * hidden)),
        ]

    @staticmethod
    def _states(given: Any) -> tuple[Tensor, ...]:
        return (given,)

    def mode(self, listener: Listener) -> str | None:
        modes = [part.mode(listener) for part in self.parts]  # each tells of a call that it cannot record
        return modes[0]

    def passed(self, listener: Listener, call: Call) -> tuple[Tensor, ...]:
        """As `Tap.passed`; the key of the call is [h; x], all that the error signals are computed from."""
        outputs = call.outputs
        try:
            dtype = _computed_in(call.key)
            keys = [part.key_of(call.key).to(dtype) for part in self.parts]
        except Exception as error:
            hand_over(listener, error, self.name)
            self.passes_by()
            return outputs
        for part, key in zip(self.parts, keys, strict=True):
            outputs = part.passed(listener, Call(key, outputs, call.raw, kept=(call.key,), argument=call.argument))
        return outputs

    def passes_by(self) -> None:
        for part in self.parts:
            part.passes_by()

    def refuse(self, listener: Listener, error: RecordingError) -> None:
        for part in self.parts:
            listener.refused(part, error)

    @torch.no_grad()
    def errors_of(self, part: _Part, tokens: Tensor, gradients: Sequence[Tensor | None]) -> Tensor:
        """[..., 4 H]: the error signals of gates, u and v. Computed for the first layer that asks, kept for the others.

        `tokens`: [..., H + X], the keys of the gates; `gradients`: of the output and of the last state.
        """
        if self._last is None or not self._last.is_of(tokens, gradients):
            self._last = _Backward(tokens, gradients, self._errors(tokens, gradients))
        found = self._last.errors
        if part is self.parts[0]:  # the first one that outputs pass is the last one that gradients reach
            self._last = None
        return found

    def _errors(self, tokens: Tensor, gradients: Sequence[Tensor | None]) -> Tensor:
        # In the training's own precision at best, and never in the halved one of an autocast around it.
        dtype, time, own = torch.promote_types(tokens.dtype, torch.float32), self.time_of(tokens), self.module
        of_output, of_state = (None if gradient is None else gradient.to(dtype) for gradient in gradients)
        with torch.autocast(tokens.device.type, enabled=False):
            weights = [self._own(name).to(dtype) for name in ("weight_hh_l0", "weight_ih_l0")]
            before, given = tokens.to(dtype).transpose(0, time).tensor_split([own.hidden_size], -1)
            of_hidden, of_input = before @ weights[0].T, given @ weights[1].T
            if own.bias:
                of_hidden += self._own("bias_hh_l0").to(dtype)
                of_input += self._own("bias_ih_l0").to(dtype)
            errors = _gru_errors(
                before,
                of_hidden,
                of_input,
                weights[0],
                None if of_output is None else of_output.transpose(0, time),
                None if of_state is None else of_state[0],
            )
        return errors.transpose(0, time)

    def _own(self, name: str) -> Tensor:
        """What the module computes with: in a functional call no parameter of its own."""
        found: Tensor = getattr(self.module, name)
        return found


def _computed_in(tokens: Tensor) -> torch.dtype:
    """What the products are computed in: under autocast in half precision, though the states may stay whole."""
    device = tokens.device.type
    if torch.is_autocast_enabled(device) and tokens.dtype is not torch.float64:
        return torch.get_autocast_dtype(device)
    return tokens.dtype


class _Backward:
    """The error signals of one call in one backward pass."""

    def __init__(self, tokens: Tensor, gradients: Sequence[Tensor | None], errors: Tensor) -> None:
        self.errors = errors
        # While they are held, nothing else can lie where they do.
        self._held = tuple(own for own in (tokens, *gradients) if own is not None)
        self._from = _places(tokens, gradients)

    def is_of(self, tokens: Tensor, gradients: Sequence[Tensor | None]) -> bool:
        return self._from == _places(tokens, gradients)


def _places(tokens: Tensor, gradients: Sequence[Tensor | None]) -> list[object]:
    return [None if own is None else (own.data_ptr(), own._version) for own in (tokens, *gradients)]


class _Part(Tap):
    """One of the three layers."""

    def __init__(self, whole: TappedGRU, part: str, columns: Range, rows: Range, errors: Range) -> None:
        """`columns`: of [h; x] that its key is; `rows`: of the weights; `errors`: of the 4 H error signals."""
        super().__init__(f"{whole.name}.{part}" if whole.name else part, whole.values)
        self._whole, self._columns, self._errors = whole, columns, errors
        self.batch_dim = whole.batch_dim
        self.d_in, self.d_out = columns[1] - columns[0], rows[1] - rows[0]
        module, (first, last) = whole.module, columns
        hidden = module.hidden_size
        bias = (self.d_in, self.d_in + 1)
        places = dict[str, Range]()
        if first < hidden:
            places |= {"weight_hh_l0": (0, hidden)} | ({"bias_hh_l0": bias} if module.bias else {})
        if last > hidden:
            places |= {"weight_ih_l0": (hidden - first, last - first)} | ({"bias_ih_l0": bias} if module.bias else {})
        self.parameters = {
            Parameter(whole.parameter_name(name), *place, rows=rows): getattr(module, name)
            for name, place in sorted(places.items(), key=lambda item: item[1])
        }

    def attach(self, listener: Listener) -> None:
        if not self._whole.parts:
            self._whole.attach(listener)
        self._whole.parts.append(self)

    def detach(self) -> None:
        self._whole.parts = [part for part in self._whole.parts if part is not self]
        if not self._whole.parts:
            self._whole.detach()

    def key_of(self, tokens: Tensor) -> Tensor:
        """A view of [h; x]."""
        return tokens[..., self._columns[0] : self._columns[1]]

    def error_of(self, key: Tensor, kept: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
        return self._whole.errors_of(self, kept[0], gradients)[..., self._errors[0] : self._errors[1]]


def _gru_errors(
    before: Tensor,
    of_hidden: Tensor,
    of_input: Tensor,
    weight: Tensor,
    of_output: Tensor | None,
    of_state: Tensor | None,
) -> Tensor:
    """[L, ..., 4 H]: the gradients of the sums before any sigmoid: of r, z, u and v.

    `before` [L, ..., H]: h_(t-1); `of_hidden` and `of_input` [L, ..., 3 H]: what W_hh and W_ih made of the state and
    of the input; `weight` [3 H, H]: W_hh; `of_output` [L, ..., H] and `of_state` [..., H], of h_L: the gradients that
    came from outside; None is zero.
    """
    (r, z, v), (r_of_input, z_of_input, u) = of_hidden.chunk(3, -1), of_input.chunk(3, -1)
    r, z = (r + r_of_input).sigmoid(), (z + z_of_input).sigmoid()
    n = (u + r * v).tanh()
    to_z, to_u = (before - n) * z * (1 - z), (1 - z) * (1 - n * n)
    # Of r, z and v, whose sums the state enters: [L, ..., 3, H].
    through = torch.stack([to_u * v * r * (1 - r), to_z, to_u * r], -2)
    errors = through.new_empty(*before.shape[:-1], 4, before.shape[-1])
    of_next = torch.zeros_like(before[0]) if of_state is None else of_state
    for token in reversed(range(len(before))):
        if of_output is not None:
            of_next = of_next + of_output[token]
        of_sums = of_next.unsqueeze(-2) * through[token]
        errors[token, ..., :2, :], errors[token, ..., 3, :] = of_sums[..., :2, :], of_sums[..., 2, :]
        errors[token, ..., 2, :] = of_next * to_u[token]
        of_next = of_next * z[token] + of_sums.flatten(-2) @ weight
    return errors.flatten(-2)
