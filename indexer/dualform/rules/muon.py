"""The update rule of torch.optim.Muon.

    m' = m + (1 - momentum) (g - m)        u = g + momentum (m' - g) with Nesterov's step, else m'
    O  = five steps of  X <- a X + (b A + c A A) X,  A = X X^T,  from  u / |u|,  in bfloat16 (of a tall u, transposed)
    W' = (1 - lr decay) W - lr f O        f = sqrt(max(1, rows / columns)), or 0.2 sqrt(max(rows, columns))

The steps are those of a polynomial in A, so that in exact arithmetic O = M u, with a matrix M that belongs to the whole
gradient (torch/optim/_muon.py). torch rounds every product to bfloat16, in an order of the machine's. Here each product
is a float64 one that is rounded alike, whatever order it is summed in; that is as near as the record comes, so what
Muon trained is exact to bfloat16 at best. A part of u moves by M of it and its share of what rounding did to the whole,
O - M u; parts add up to what the whole moved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from dualform.rules.descent import left_by_decay
from dualform.rules.half_precision import rounded
from dualform.rules.rounding import factor, rounds_factors
from dualform.rules.update_rule import Doubles, Scale, Settings, State, UpdateRule

_BUFFER = "momentum_buffer"


@dataclass(frozen=True, eq=False)
class _Orthogonalized(Scale):
    """`factors` is M, times the rate: float64[rows, rows], or [columns, columns] of a tall parameter."""

    rest: Doubles = field(kw_only=True)
    """What rounding did to the whole, times the rate; of the parameter's shape."""
    whole: Doubles = field(kw_only=True)
    """u over its squared norm."""


class Muon(UpdateRule):
    """As UpdateRule says. Needs whole matrices."""

    name = "muon"
    settings: Mapping[str, str] = {
        "lr": "DOUBLE",
        "momentum": "DOUBLE",
        "weight_decay": "DOUBLE",
        "nesterov": "BOOLEAN",
        "a": "DOUBLE",
        "b": "DOUBLE",
        "c": "DOUBLE",
        "eps": "DOUBLE",
        "ns_steps": "DOUBLE",
        "match_rms_adamw": "BOOLEAN",
        "rounds_factors": "BOOLEAN",
    }
    buffers = (_BUFFER,)
    precision: Literal["", "bfloat16"] = "bfloat16"

    def read(self, group: Mapping[str, Any]) -> Settings:
        a, b, c = group["ns_coefficients"]
        said = {**group, "a": a, "b": b, "c": c, "rounds_factors": rounds_factors(group)}
        said["match_rms_adamw"] = group.get("adjust_lr_fn") == "match_rms_adamw"
        return super().read(said)

    def refusal(self, group: Mapping[str, Any]) -> str:
        if (adjusts := group.get("adjust_lr_fn")) not in (None, "original", "match_rms_adamw"):
            return f"its adjust_lr_fn is {adjusts!r}"
        return super().refusal(group)

    def scale(self, state: State, gradient: Doubles, settings: Settings) -> Scale:
        whole, _ = _moved(state, gradient, settings)
        tall = len(whole) > whole.shape[1]
        wide = whole.T if tall else whole
        matrix, made = _polynomial(wide, settings), _in_bfloat16(wide, settings)
        rest, rate = made - matrix @ wide, _rate(whole.shape, settings)
        square = float((whole * whole).sum())
        direction = whole / square if square else np.zeros_like(whole)
        rest = rate * (rest.T if tall else rest)
        return _Orthogonalized(rate * matrix, {}, left_by_decay(state.weight, settings), rest=rest, whole=direction)

    def advance(self, state: State, gradient: Doubles, settings: Settings, scale: Scale | None = None) -> State:
        assert isinstance(scale, _Orthogonalized)
        own, momentum = _moved(state, gradient, settings)
        tall = len(own) > own.shape[1]
        move = own @ scale.factors.T if tall else scale.factors @ own
        move += float((own * scale.whole).sum()) * scale.rest
        return State(scale.kept * state.weight - move, {_BUFFER: momentum})


def _moved(state: State, gradient: Doubles, settings: Settings) -> tuple[Doubles, Doubles]:
    """What is to be orthogonalized, and the momentum after the update."""
    share = factor(1 - settings["momentum"], settings)
    momentum = share * gradient
    if _BUFFER in state.buffers:
        momentum += (1 - share) * state.buffers[_BUFFER]
    if not settings["nesterov"]:
        return momentum, momentum
    return gradient + factor(settings["momentum"], settings) * (momentum - gradient), momentum


def _rate(shape: tuple[int, ...], settings: Settings) -> float:
    rows, columns = shape
    if settings["match_rms_adamw"]:
        return settings["lr"] * 0.2 * math.sqrt(max(rows, columns))
    return settings["lr"] * math.sqrt(max(1.0, rows / columns))


def _polynomial(wide: Doubles, settings: Settings) -> Doubles:
    """M, in float64."""
    a, b, c = (settings[name] for name in "abc")
    length = max(float(np.linalg.norm(wide)), settings["eps"])
    matrix, moved = np.eye(len(wide)) / length, wide / length
    for _ in range(int(settings["ns_steps"])):
        gram = moved @ moved.T
        step = b * gram + c * (gram @ gram)
        matrix, moved = a * matrix + step @ matrix, a * moved + step @ moved
    return matrix


def _in_bfloat16(wide: Doubles, settings: Settings) -> Doubles:
    """O, each product rounded to bfloat16 as torch rounds it."""
    a, b, c = (settings[name] for name in "abc")
    moved = _to_bfloat16(wide)
    length = float(_to_bfloat16(np.sqrt((moved * moved).sum())))
    moved = _to_bfloat16(moved / max(length, settings["eps"]))
    for _ in range(int(settings["ns_steps"])):
        gram = _to_bfloat16(moved @ moved.T)
        step = _to_bfloat16(b * gram + c * (gram @ gram))
        moved = _to_bfloat16(a * moved + step @ moved)
    return moved


def _to_bfloat16(numbers: Doubles) -> Doubles:
    return rounded(numbers, "bfloat16")
