"""Small optimizers of one's own, with the rules that follow them."""

from __future__ import annotations

import numpy as np
import torch

from dualform.rules import Scale, State, UpdateRule, register


class Sign(torch.optim.Optimizer):
    """W - lr g / (|g| + 0.01): each number on its own."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter -= group["lr"] * parameter.grad / (parameter.grad.abs() + 0.01)


class SignRule(UpdateRule):
    name = "sign"
    settings = {"lr": "DOUBLE"}  # noqa: RUF012
    commutes_with = "entries"

    def scale(self, state, gradient, settings):
        return Scale(settings["lr"] / (np.abs(gradient) + 0.01), {})

    def advance(self, state, gradient, settings, scale=None):
        return State(state.weight - scale.factors * gradient)


class Normed(torch.optim.Optimizer):
    """m' = 0.5 m + g;  W - lr m' / ||g||: of the whole matrix."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                momentum.mul_(0.5).add_(parameter.grad)
                parameter -= group["lr"] * momentum / parameter.grad.norm()


class NormedRule(UpdateRule):
    name = "normed"
    settings = {"lr": "DOUBLE"}  # noqa: RUF012
    buffers = ("momentum",)

    def scale(self, state, gradient, settings):
        return Scale(np.asarray(settings["lr"] / np.linalg.norm(gradient)), {})

    def advance(self, state, gradient, settings, scale=None):
        momentum = 0.5 * state.buffers.get("momentum", 0.0) + gradient
        return State(state.weight - scale.factors * momentum, {"momentum": momentum})


class Heavy(torch.optim.SGD):
    """m' = 0.5 m + g, the first m being g itself;  W - lr m'. Momentum under another name."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr, momentum=0.5)


class HeavyRule(UpdateRule):
    """Keeps the array of the first gradient."""

    name = "heavy"
    settings = {"lr": "DOUBLE"}  # noqa: RUF012
    buffers = ("momentum_buffer",)
    commutes_with = "directions"

    def advance(self, state, gradient, settings, scale=None):
        before = state.buffers.get("momentum_buffer")
        momentum = gradient if before is None else 0.5 * before + gradient
        return State(state.weight - settings["lr"] * momentum, {"momentum_buffer": momentum})


class Unruled(torch.optim.SGD):
    """An optimizer that no rule follows: a subclass may change the update."""


class Plain(torch.optim.SGD):
    """SGD under another name, with a rule that gives no coefficients."""


class PlainRule(UpdateRule):
    name = "plain"
    settings = {"lr": "DOUBLE"}  # noqa: RUF012
    commutes_with = "directions"

    def advance(self, state, gradient, settings, scale=None):
        return State(state.weight - settings["lr"] * gradient)


register(Sign, SignRule())
register(Normed, NormedRule())
register("tests.rules.own.Plain", PlainRule())
register("tests.rules.own.Heavy", HeavyRule())
