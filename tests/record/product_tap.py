"""A tap of one's own: of a product that a network computes by hand and hands over."""

from __future__ import annotations

from torch.nn.functional import linear

from dualform.record.taps import Call, Tap


class Product(Tap):
    """The tap of x W^T + b. Keeps the keys that it saw."""

    def __init__(self, name, d_in, d_out, parameters):
        super().__init__(name)
        self.d_in, self.d_out, self.parameters = d_in, d_out, parameters
        self.listener, self.seen = None, []

    def attach(self, listener):
        self.listener = listener

    def detach(self):
        self.listener = None

    def error_of(self, key, kept, gradients):
        return gradients[0]

    def __call__(self, x, weight, bias=None):
        output = linear(x, weight, bias)
        if self.listener is None:
            return output
        self.seen.append(x.detach().clone().reshape(-1, x.shape[-1]))
        return self.passed(self.listener, Call(x.detach(), (output,), raw=not x.requires_grad, argument=x))[0]
