"""The tap for nn.LSTM: keys [h_(t-1); x_t], values at the pre-activations of the gates.

Shapes: L tokens, H hidden units; `...` is [B], or nothing for an unbatched call.

    [i; f; g; o]_t  =  [W_hh | W_ih] [h_(t-1); x_t] + b_hh + b_ih        i, f, o after a sigmoid, g after tanh
    c_t = f_t c_(t-1) + i_t g_t        h_t = o_t tanh(c_t)

That product is the linear layer whose training is remembered. Its error signal shows nowhere in torch's own backward
pass, so it is computed again from the keys, which hold every state, and from the gradients that reached the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dualform.record.taps.recurrent import TappedRecurrent
from dualform.store.parameter import Parameter


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
            errors = _errors(
                gates,
                cell,
                weights[0],
                None if of_output is None else of_output.transpose(0, time),
                [None if gradient is None else gradient[0] for gradient in of_states],
            )
        return errors.transpose(0, time)


def _errors(
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
