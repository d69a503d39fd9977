"""Updates of SGD, Adam and AdamW as functions of tensors, and their adjoints (rules/sgd.py and rules/adam.py give the
equations).

An update takes a weight W, buffers and a gradient g to W' and new buffers. Its adjoint takes what a loss changes by W'
and the buffers behind it to what it changes by W, the buffers before and g. Shapes: n losses, a weight of any shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from dualform.rules import Settings

Buffers = Mapping[str, Tensor]
"""By the optimizer's own names; those that it does not have yet are missing."""


@dataclass(frozen=True, eq=False)
class Moved:
    """A parameter, or what losses change by it ([n, …])."""

    weight: Tensor
    buffers: Buffers


class OptimizerStep(Protocol):
    def advance(self, state: Moved, gradient: Tensor, settings: Settings) -> Moved:
        """By torch's own function, so that a rerun rounds as the training did."""
        ...

    def carry_back(self, state: Moved, gradient: Tensor, settings: Settings, after: Moved) -> tuple[Moved, Tensor]:
        """What n losses change by the state before an update, and by its gradient; `after`: by the state behind it."""
        ...


class SGDStep:
    def advance(self, state: Moved, gradient: Tensor, settings: Settings) -> Moved:
        weight, before = state.weight.clone(), state.buffers.get("momentum_buffer")
        buffers = [None if before is None else before.clone()]
        names = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")
        given: dict[str, Any] = {name: settings[name] for name in names}
        sgd([weight], [gradient], buffers, foreach=False, **given)
        return Moved(weight, {} if buffers[0] is None else {"momentum_buffer": buffers[0]})

    def carry_back(self, state: Moved, gradient: Tensor, settings: Settings, after: Moved) -> tuple[Moved, Tensor]:
        momentum, of_step = settings["momentum"], -settings["lr"] * after.weight
        if not momentum:
            of_descent, buffers = of_step, after.buffers
        else:
            of_buffer = of_step * momentum if settings["nesterov"] else of_step
            if (later := after.buffers.get("momentum_buffer")) is not None:
                of_buffer = of_buffer + later
            fresh = "momentum_buffer" not in state.buffers
            of_descent = of_buffer if fresh else (1 - settings["dampening"]) * of_buffer
            of_descent = of_descent + of_step if settings["nesterov"] else of_descent
            buffers = {} if fresh else {"momentum_buffer": momentum * of_buffer}
        weight, of_gradient = _through_descent(after.weight, of_descent, settings, bool(settings["weight_decay"]))
        return Moved(weight, buffers), of_gradient


class AdamStep:
    """Without AMSGrad. The count of updates is a buffer too, and no loss changes by it."""

    def advance(self, state: Moved, gradient: Tensor, settings: Settings) -> Moved:
        weight, zero = state.weight.clone(), torch.zeros_like(gradient)
        average, square = (state.buffers.get(name, zero).clone() for name in ("exp_avg", "exp_avg_sq"))
        count = state.buffers.get("step", torch.zeros(())).clone()
        names = ("lr", "beta1", "beta2", "eps", "weight_decay", "maximize", "decoupled_weight_decay")
        given: dict[str, Any] = {name: settings[name] for name in names}
        adam([weight], [gradient], [average], [square], [], [count], foreach=False, amsgrad=False, **given)
        return Moved(weight, {"exp_avg": average, "exp_avg_sq": square, "step": count})

    def carry_back(self, state: Moved, gradient: Tensor, settings: Settings, after: Moved) -> tuple[Moved, Tensor]:
        coupled = bool(settings["weight_decay"]) and not settings["decoupled_weight_decay"]
        descent = _descent(state, gradient, settings, coupled)
        average, square, count = self._averages(state, descent, settings)
        slope, of_square = self._slopes(average, square, count, settings)
        by_average, by_square = slope * after.weight, of_square * after.weight
        if after.buffers:
            by_average, by_square = by_average + after.buffers["exp_avg"], by_square + after.buffers["exp_avg_sq"]
        of_descent = (1 - settings["beta1"]) * by_average
        of_descent += 2 * (1 - settings["beta2"]) * descent * by_square
        kept = self._kept(settings) * after.weight
        weight, of_gradient = _through_descent(kept, of_descent, settings, coupled)
        return Moved(
            weight, {"exp_avg": settings["beta1"] * by_average, "exp_avg_sq": settings["beta2"] * by_square}
        ), of_gradient

    def _averages(self, state: Moved, descent: Tensor, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
        zero = torch.zeros_like(descent)
        average, square = state.buffers.get("exp_avg", zero), state.buffers.get("exp_avg_sq", zero)
        average = average + (1 - settings["beta1"]) * (descent - average)
        square = settings["beta2"] * square + (1 - settings["beta2"]) * descent * descent
        return average, square, state.buffers.get("step", torch.zeros(())) + 1

    def _slopes(self, average: Tensor, square: Tensor, count: Tensor, settings: Settings) -> tuple[Tensor, Tensor]:
        """How the weight changes by both averages. Where the square is 0 it does not change by it: the gradient was
        always 0, and that of the root would be infinite.
        """
        first, second = (1 - settings[name] ** float(count) for name in ("beta1", "beta2"))
        root = (square / second).sqrt()
        divisor = root + settings["eps"]
        of_average = -settings["lr"] / first / divisor
        of_square = -of_average * average / divisor / (2 * second * root)
        return of_average, torch.where(square == 0, 0.0, of_square)

    def _kept(self, settings: Settings) -> float:
        return 1 - settings["lr"] * settings["weight_decay"] * bool(settings["decoupled_weight_decay"])


STEPS: Mapping[str, OptimizerStep] = {"sgd": SGDStep(), "adam": AdamStep(), "adamw": AdamStep()}
"""By the name of an update rule."""


def _descent(state: Moved, gradient: Tensor, settings: Settings, decays: bool = True) -> Tensor:
    descent = -gradient if settings["maximize"] else gradient
    return descent + settings["weight_decay"] * state.weight if decays and settings["weight_decay"] else descent


def _through_descent(weight: Tensor, of_descent: Tensor, settings: Settings, decays: bool) -> tuple[Tensor, Tensor]:
    """What losses change by the weight, directly and by its decay, and by the gradient."""
    if decays:
        weight = weight + settings["weight_decay"] * of_descent
    return weight, -of_descent if settings["maximize"] else of_descent
