"""The taps for nn.GRU: its three products are layers, `<module>.gates`, `.candidate_input` and `.candidate_hidden`.

Shapes: L tokens, X inputs, H hidden units; `...` is [B], or nothing for an unbatched call.

    [r; z]_t  =  [W_hh | W_ih]_rz [h_(t-1); x_t] + b_hh + b_ih      gates: both after a sigmoid
    u_t  =  W_ih_n x_t + b_ih_n                                     candidate_input
    v_t  =  W_hh_n h_(t-1) + b_hh_n                                 candidate_hidden
    n_t = tanh(u_t + r_t v_t)        h_t = (1 - z_t) n_t + z_t h_(t-1)

The reset gate stands between v and the sum that it enters, so that u and v have error signals of their own, and one
product of both could not be remembered. As with an LSTM, torch's own backward pass shows none of the error signals:
they are computed again from the states and from the gradients that reached the outputs, all three at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dualform.errors import RecordingError
from dualform.record.taps.hook import hand_over
from dualform.record.taps.recurrent import TappedRecurrent
from dualform.record.taps.tap import Call, Listener, Tap
from dualform.store.parameter import Parameter, Range


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
            errors = _errors(
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


def _errors(
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
