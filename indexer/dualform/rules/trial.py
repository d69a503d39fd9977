"""A rule of one's own, tried on random numbers before it is followed: whether it keeps what an update rule promises.

A rule that fails here gives scores only, with the reason; one that fails later is noticed by the watch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualform.rules.update_rule import Doubles, Scale, Settings, State, UpdateRule, updated

_SHAPE = (5, 4)
_SEED = 3
_UPDATES = 3
_TOLERANCE = 1e-9
"""Of the largest number: sums in another order come out at 1e-15."""


@dataclass(frozen=True, eq=False)
class _Update:
    """One update on random numbers, and what the rule made of it."""

    rule: UpdateRule
    settings: Settings
    state: State
    gradient: Doubles
    scale: Scale | None
    after: State


def why_not_followed(rule: UpdateRule, settings: Settings) -> str:
    """Why a rule is not followed with these settings; empty where it keeps its promises. The built-in ones do."""
    if type(rule).__module__.startswith("dualform.rules."):
        return ""
    try:
        with np.errstate(all="ignore"):
            return next(_broken(rule, settings), "")
    except Exception as error:  # whatever a rule of one's own raises must not end the training
        return f"it raised {type(error).__name__}: {error}"


def _broken(rule: UpdateRule, settings: Settings) -> Iterator[str]:
    """What it does not keep, update after update."""
    generator = np.random.default_rng(_SEED)
    state = State(_numbers(generator))
    for _ in range(_UPDATES):
        gradient = _numbers(generator)
        after, scale = updated(rule, state, gradient, settings)
        update = _Update(rule, settings, state, gradient, scale, after)
        yield from _misshapen(update)
        yield from _not_linear(update, generator)
        yield from _not_commuting(update, generator)
        buffers = {kind: _read_only(np.array(own, dtype=np.float64)) for kind, own in after.buffers.items()}
        state = State(_read_only(after.weight), buffers)


def _misshapen(update: _Update) -> Iterator[str]:
    rule, after = update.rule, update.after
    if not isinstance(after.weight, np.ndarray) or after.weight.shape != _SHAPE:
        yield f"advance gives a weight {_said(after.weight)} for one of shape {_SHAPE}"
    known = {*rule.buffers, *rule.statistics}
    for kind, own in after.buffers.items():
        if kind not in known:
            yield f"it gives {kind!r}, which is neither among its buffers nor its statistics"
        shape = np.shape(own)
        if len(shape) > len(_SHAPE) or any(n not in (1, m) for n, m in zip(shape[::-1], _SHAPE[::-1], strict=False)):
            yield f"it gives {kind} {_said(own)} for a weight of shape {_SHAPE}"
    if update.scale is not None and rule.commutes_with == "directions":
        yield 'it has a scale, so it does not commute with "directions"'
    if not all(np.isfinite(own).all() for own in (after.weight, *after.buffers.values())):
        yield "it makes NaN or infinity from ordinary numbers"


def _not_linear(update: _Update, generator: np.random.Generator) -> Iterator[str]:
    """Shares of a partition must add up to the whole, with the scale held."""
    rule, state, after = update.rule, update.state, update.after
    linear = {kind: own for kind, own in state.buffers.items() if kind in rule.buffers}
    parts = {kind: _read_only(generator.normal(size=np.shape(own))) for kind, own in linear.items()}
    weight, part = _numbers(generator), _numbers(generator)
    one = rule.advance(State(weight, parts), part, update.settings, update.scale)
    rest = {kind: _read_only(np.asarray(linear[kind] - own)) for kind, own in parts.items()}
    left_over = State(_read_only(state.weight - weight), rest)
    other = rule.advance(left_over, _read_only(update.gradient - part), update.settings, update.scale)
    for kind, whole in {"weight": after.weight, **_of(rule.buffers, after)}.items():
        own, left = ((s.weight if kind == "weight" else s.buffers.get(kind)) for s in (one, other))
        if own is None or left is None or not _alike(own + left, whole):
            yield f"its advance is not linear: the {kind} of two shares does not add up to that of the whole"


def _not_commuting(update: _Update, generator: np.random.Generator) -> Iterator[str]:
    """What the watch sees of the parameter must go the way that all of it goes."""
    rule, state, after = update.rule, update.state, update.after
    if not rule.commutes_with:
        return
    mixed = generator.normal(size=(_SHAPE[1], 3))

    def seen(array: Any) -> Doubles:
        if np.ndim(array) != len(_SHAPE):
            return _read_only(np.asarray(array))
        return _read_only(array @ mixed if rule.commutes_with == "directions" else array[1:3, 1:])

    image = State(seen(state.weight), {kind: seen(own) for kind, own in state.buffers.items()})
    own, _ = updated(rule, image, seen(update.gradient), update.settings)
    pairs = [(own.weight, after.weight), *((own.buffers[kind], whole) for kind, whole in after.buffers.items())]
    if not all(_alike(found, seen(whole)) for found, whole in pairs):
        yield f"it does not commute with {rule.commutes_with!r}"


def _of(kinds: tuple[str, ...], state: State) -> Mapping[str, Doubles]:
    return {kind: state.buffers[kind] for kind in kinds if kind in state.buffers}


def _alike(one: Doubles, other: Doubles) -> bool:
    return bool(np.abs(one - other).max() <= _TOLERANCE * max(1.0, float(np.abs(other).max())))


def _numbers(generator: np.random.Generator) -> Doubles:
    return _read_only(generator.normal(size=_SHAPE))


def _read_only(array: Any) -> Doubles:
    """A rule that writes into what it is given raises."""
    found: Doubles = np.array(array, dtype=np.float64)
    found.setflags(write=False)
    return found


def _said(array: Any) -> str:
    return f"of shape {array.shape}" if isinstance(array, np.ndarray) else f"that is {type(array).__name__}"
