"""Update rules, one file each: how an optimizer turns gradients into weights.

A new optimizer is a new file here and a line in the table below; a rule of one's own is registered:

    dualform.rules.register("my_package.MyOptimizer", MyRule())

in every process that records with it or asks what it recorded. A rule is found by the optimizer's own type, by name,
so that no torch is imported; a subclass may change the update, so it does not count as its base.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from dualform.errors import BadInput
from dualform.rules.adadelta import Adadelta
from dualform.rules.adafactor import Adafactor
from dualform.rules.adagrad import Adagrad
from dualform.rules.adam import Adam
from dualform.rules.adamax import Adamax
from dualform.rules.asgd import ASGD
from dualform.rules.declarations import check_declared, same_rule
from dualform.rules.muon import Muon
from dualform.rules.nadam import NAdam
from dualform.rules.optimizers_without_rule import REFUSED
from dualform.rules.radam import RAdam
from dualform.rules.rmsprop import RMSprop
from dualform.rules.rounding import left_of
from dualform.rules.rprop import Rprop
from dualform.rules.sgd import SGD
from dualform.rules.trial import why_not_followed
from dualform.rules.update_rule import (
    Coefficients,
    LinearRule,
    Scale,
    Settings,
    State,
    Update,
    UpdateRule,
    advanced,
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
    "advanced",
    "left_of",
    "named",
    "of_type",
    "register",
    "settings_of",
    "updated",
    "why_not_followed",
    "why_refused",
]

_BY_TYPE: dict[str, UpdateRule] = {
    "torch.optim.sgd.SGD": SGD(),
    "torch.optim.adam.Adam": Adam("adam", decoupled=False),
    "torch.optim.adamw.AdamW": Adam("adamw", decoupled=True),
    "torch.optim.nadam.NAdam": NAdam(),
    "torch.optim.radam.RAdam": RAdam(),
    "torch.optim.adamax.Adamax": Adamax(),
    "torch.optim.rmsprop.RMSprop": RMSprop(),
    "torch.optim.adagrad.Adagrad": Adagrad(),
    "torch.optim.adadelta.Adadelta": Adadelta(),
    "torch.optim.asgd.ASGD": ASGD(),
    "torch.optim.rprop.Rprop": Rprop(),
    "torch.optim._adafactor.Adafactor": Adafactor(),
    "torch.optim._muon.Muon": Muon(),
}
_PUBLIC = {f"torch.optim.{key.rpartition('.')[2]}": key for key in (*_BY_TYPE, *REFUSED)}
"""Torch's other names of the same types, known before it is loaded."""
_RATE: Mapping[str, str] = {"lr": "DOUBLE"}
"""What is logged of an optimizer that no rule follows."""


def register(optimizer: type | str, rule: UpdateRule) -> None:
    """Let a rule follow an optimizer: its type, or that type's full name.

    Raises BadInput where the rule or the optimizer is taken by another rule, and where what the rule declares cannot be
    logged.
    """
    check_declared(rule)
    key = _known_name(optimizer) if isinstance(optimizer, str) else _type_name(optimizer)
    for other, known in _BY_TYPE.items():
        if (known.name == rule.name or other == key) and not same_rule(known, rule):
            taken = f"another update rule is named {rule.name!r}"
            if known.name != rule.name:
                taken = f"{key} already has update rule {known.name!r}"
            raise BadInput(f"{taken}.", hint="Give each rule its own name, and each optimizer one rule.", field="rule")
    same = [other for other, known in _BY_TYPE.items() if known.name == rule.name]
    _BY_TYPE.update(dict.fromkeys((*same, key), rule))


def of_type(kind: type) -> UpdateRule | None:
    """The rule of an optimizer's type; None where there is none."""
    name = _type_name(kind)
    # What was registered before its module was loaded may be another name of the type.
    return _BY_TYPE.get(name) or next((rule for key, rule in _BY_TYPE.items() if _known_name(key) == name), None)


def named(name: str) -> UpdateRule | None:
    """The rule that a manifest names; None where it names none, or one that is not here."""
    return next((rule for rule in _BY_TYPE.values() if rule.name == name), None)


def why_refused(kind: type) -> str:
    """Why no rule can follow an optimizer's type, as the end of a sentence; empty where one could, or does."""
    return "" if of_type(kind) else REFUSED.get(_type_name(kind), "")


def settings_of(name: str) -> Mapping[str, str]:
    """The settings that are logged at each update, with their DuckDB types."""
    rule = named(name)
    return _RATE if rule is None else rule.settings


def _known_name(name: str) -> str:
    """The full name of the type that a name stands for, as torch.optim.Adam does; the name where it is not loaded."""
    module, _, own = name.rpartition(".")
    found = getattr(sys.modules.get(module), own, None)
    if isinstance(found, type):
        return _type_name(found)
    return _PUBLIC.get(name, name)


def _type_name(kind: type) -> str:
    if not isinstance(kind, type):
        raise BadInput(
            f"optimizer must be a type or its full name, not {kind!r}.",
            hint="Pass the optimizer's class, for example torch.optim.Adam.",
            field="optimizer",
        )
    return f"{kind.__module__}.{kind.__qualname__}"
