"""An optimizer as a memory names it: what updated some of the recorded blocks, and by which rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class StoredOptimizer:
    """One of those that trained the network."""

    name: str
    """Of its class."""
    rule: str
    """The update rule that it follows; "" where none is known, so that weights cannot be rebuilt."""
    reason: str
    """Why there is no rule, where there is none."""
    blocks: tuple[str, ...] = ()
    """Names of the parameter blocks that it updates; of the first optimizer they are not listed: all others."""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "blocks": list(self.blocks)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> StoredOptimizer:
        return cls(fields["name"], fields["rule"], fields["reason"], tuple(fields["blocks"]))


def names_of(optimizers: Sequence[StoredOptimizer]) -> str:
    """What they are called together: "SGD and AdamW"."""
    *others, last = dict.fromkeys(optimizer.name for optimizer in optimizers)
    return f"{', '.join(others)} and {last}" if others else last


def for_one(optimizers: Sequence[StoredOptimizer]) -> dict[str, str]:
    """What memory.json says of them where it names one optimizer.

    Of several it is none that a version of dualform would follow that knows of one alone.
    """
    first, *others = optimizers
    if not others:
        return {"name": first.name, "rule": first.rule, "reason": first.reason}
    reason = "several optimizers updated the network: attention scores are exact, a later dualform rebuilds weights"
    return {"name": names_of(optimizers), "rule": "", "reason": reason}


def joined_optimizers(runs: Sequence[Sequence[StoredOptimizer]]) -> list[StoredOptimizer]:
    """Those of several runs of one training: a block that is not updated by one rule throughout has none."""
    named = dict.fromkeys(block for optimizers in runs for other in optimizers[1:] for block in other.blocks)
    found: dict[StoredOptimizer, list[str]] = {_joined([optimizers[0] for optimizers in runs]): []}
    for block in named:
        each = [next((own for own in optimizers[1:] if block in own.blocks), optimizers[0]) for optimizers in runs]
        found.setdefault(_joined(each), []).append(block)
    first, *others = found.items()
    return [first[0], *(replace(optimizer, blocks=tuple(blocks)) for optimizer, blocks in others)]


def _joined(runs: Sequence[StoredOptimizer]) -> StoredOptimizer:
    """One optimizer after another, as one."""
    rules = list(dict.fromkeys(optimizer.rule for optimizer in runs))
    reasons = [optimizer.reason for optimizer in runs if optimizer.reason]
    if len(rules) > 1 and not reasons:
        reasons = [f"the runs follow different update rules: {', '.join(rules)}."]
    name = " then ".join(dict.fromkeys(optimizer.name for optimizer in runs))
    return StoredOptimizer(name, rules[0] if len(rules) == 1 else "", reasons[0] if reasons else "")
