"""What an update rule declares of itself, held against what a memory can log and run again."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import isclass
from typing import Any

from dualform.errors import BadInput
from dualform.rules.update_rule import UpdateRule

_KINDS = ("DOUBLE", "BOOLEAN")
_IMAGES = ("directions", "entries", "")
_PRECISIONS = ("", "bfloat16")
_LOGGED = ("step", "group")
"""Columns that stand beside the settings in the log."""


def check_declared(rule: UpdateRule) -> None:
    """Raises BadInput where a rule cannot be registered, naming what it declares."""
    if isclass(rule) or not all(
        callable(getattr(rule, name, None)) for name in ("read", "refusal", "scale", "advance")
    ):
        raise BadInput(
            f"rule must be an UpdateRule, not {rule!r}.",
            hint="Pass an instance of a subclass of UpdateRule.",
            field="rule",
        )
    if not isinstance(rule.name, str) or not rule.name:
        raise BadInput(
            f"name of an update rule must be text that is not empty, not {rule.name!r}.",
            hint='For example name = "lion".',
            field="name",
        )
    _check_settings(rule.name, dict(rule.settings))
    _check_kept(rule.name, rule.buffers, rule.statistics)
    if rule.commutes_with not in _IMAGES:
        raise _wrong(rule.name, "commutes_with", rule.commutes_with, f"one of {', '.join(map(repr, _IMAGES))}")
    if rule.precision not in _PRECISIONS:
        raise _wrong(rule.name, "precision", rule.precision, f"one of {', '.join(map(repr, _PRECISIONS))}")


def same_rule(one: UpdateRule, other: UpdateRule) -> bool:
    """Whether two rules are of one class, by its name, and hold the same: a notebook defines a class once more."""
    if _class_name(one) != _class_name(other) or vars(one).keys() != vars(other).keys():
        return False
    return all(repr(own) == repr(vars(other)[name]) for name, own in vars(one).items())


def _check_settings(rule: str, settings: dict[str, str]) -> None:
    if next(iter(settings), "") != "lr":
        raise BadInput(f"the settings of update rule {rule!r} must begin with 'lr'.", field="settings")
    for name, kind in settings.items():
        if kind not in _KINDS:
            raise _wrong(rule, f"settings[{name!r}]", kind, "'DOUBLE' or 'BOOLEAN'")
        if not name.isidentifier() or name.lower() in _LOGGED:
            raise _wrong(rule, "settings", name, f"identifiers other than {' and '.join(map(repr, _LOGGED))}")
    folded = [name.lower() for name in settings]  # columns of a table, whose names have no case
    if twice := [name for name in settings if folded.count(name.lower()) > 1]:
        raise _wrong(rule, "settings", " and ".join(twice), "names that differ by more than their case")


def _check_kept(rule: str, buffers: Any, statistics: Any) -> None:
    for field, names in (("buffers", buffers), ("statistics", statistics)):
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
            raise _wrong(rule, field, names, "a tuple of names")
        if wrong := [name for name in names if not name or "/" in name]:
            raise _wrong(rule, field, wrong[0], "names without a slash")
    every = [*buffers, *statistics]
    if twice := [name for name in every if every.count(name) > 1]:
        raise _wrong(rule, "buffers and statistics", twice[0], "different names")


def _wrong(rule: str, field: str, value: object, expected: str) -> BadInput:
    return BadInput(f"{field} of update rule {rule!r} cannot be {value!r}.", hint=f"Use {expected}.", field=field)


def _class_name(rule: UpdateRule) -> str:
    return f"{type(rule).__module__}.{type(rule).__qualname__}"
