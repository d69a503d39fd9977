"""Update rules, one file each: how an optimizer turns gradients into weights.

A new optimizer is a new file here and a line in the table below; a rule of one's own is registered:

    dualform.rules.register("my_package.MyOptimizer", MyRule())

in every process that records with it or asks what it recorded. A rule is found by the optimizer's own type, by name,
so that no torch is imported; a subclass may change the update, so it does not count as its base.
"""

from __future__ import annotations

from collections.abc import Mapping

from dualform.rules.adam import Adam
from dualform.rules.sgd import SGD
from dualform.rules.update_rule import (
    Coefficients,
    LinearRule,
    Scale,
    Settings,
    State,
    Update,
    UpdateRule,
    updated,
)

__all__ = [
    "Coefficients",
    "LinearRule",
    "Scale",
    "Settings",
    "State",
    "Update",
    "UpdateRule",
    "named",
    "of_type",
    "register",
    "settings_of",
    "updated",
]

_BY_TYPE: dict[str, UpdateRule] = {
    "torch.optim.sgd.SGD": SGD(),
    "torch.optim.adam.Adam": Adam("adam", decoupled=False),
    "torch.optim.adamw.AdamW": Adam("adamw", decoupled=True),
}
_RATE: Mapping[str, str] = {"lr": "DOUBLE"}
"""What is logged of an optimizer that no rule follows."""


def register(optimizer: type | str, rule: UpdateRule) -> None:
    """Let a rule follow an optimizer: its type, or that type's full name.

    Raises ValueError where the rule's name is that of another one, or its settings do not begin with `lr`.
    """
    known = named(rule.name)
    if not rule.name or (known is not None and _type_name(type(known)) != _type_name(type(rule))):
        raise ValueError(f"an update rule cannot be named {rule.name!r}: that is another one's. Give it its own name.")
    if next(iter(rule.settings), "") != "lr":
        raise ValueError(f"the settings of update rule {rule.name!r} must begin with 'lr'.")
    _BY_TYPE[optimizer if isinstance(optimizer, str) else _type_name(optimizer)] = rule


def of_type(kind: type) -> UpdateRule | None:
    """The rule of an optimizer's type; None where there is none."""
    return _BY_TYPE.get(_type_name(kind))


def named(name: str) -> UpdateRule | None:
    """The rule that a manifest names; None where it names none, or one that is not here."""
    return next((rule for rule in _BY_TYPE.values() if rule.name == name), None)


def settings_of(name: str) -> Mapping[str, str]:
    """The settings that are logged at each update, with their DuckDB types."""
    rule = named(name)
    return _RATE if rule is None else rule.settings


def _type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
