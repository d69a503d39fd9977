"""Update rules, one file each: how an optimizer turns gradients into weights.

A new linear optimizer is a new file here and a line in the table below. A rule is found by the optimizer's own type, by
name, so that no torch is imported; a subclass may change the update, so it does not count as its base.
"""

from __future__ import annotations

from collections.abc import Mapping

from dualform.rules.sgd import SGD
from dualform.rules.update_rule import Coefficients, Settings, State, Update, UpdateRule

__all__ = ["Coefficients", "Settings", "State", "Update", "UpdateRule", "named", "of_type", "settings_of"]

_BY_TYPE: Mapping[str, UpdateRule] = {"torch.optim.sgd.SGD": SGD()}
_BY_NAME: Mapping[str, UpdateRule] = {rule.name: rule for rule in _BY_TYPE.values()}
_RATE: Mapping[str, str] = {"lr": "DOUBLE"}
"""What is logged of an optimizer that no rule follows."""


def of_type(kind: type) -> UpdateRule | None:
    """The rule of an optimizer's type; None where there is none."""
    return _BY_TYPE.get(f"{kind.__module__}.{kind.__qualname__}")


def named(name: str) -> UpdateRule | None:
    """The rule that a manifest names; None where it names none, or one that this version does not have."""
    return _BY_NAME.get(name)


def settings_of(name: str) -> Mapping[str, str]:
    """The settings that are logged at each update, with their DuckDB types."""
    rule = named(name)
    return _RATE if rule is None else rule.settings
