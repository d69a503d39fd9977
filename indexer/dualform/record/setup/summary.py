"""What a recorder says of itself as recording starts, and after the first step: what it records, and what it takes."""

from __future__ import annotations

import re
import shutil
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from torch import Tensor

from dualform import kernels
from dualform.record.setup.optimizers import why_no_rule
from dualform.record.setup.plan import Plan
from dualform.record.taps import Tap
from dualform.rules import of_type
from dualform.store.batch import Batch
from dualform.store.files.ram_budget import readable
from dualform.store.layer import Layer

LISTED = 8
"""Names that are listed one by one; of more, those that differ in numbers alone are one."""
SHOWN = 10
"""Lines of recorded layers, and of reasons, that the table has at most."""
_MINUTE, _HOUR = 60.0, 3600.0
"""Seconds after which a run of unknown length is told of, and for which the disk should hold it at least."""


@dataclass(frozen=True)
class Summary:
    """What is recorded of a training. Its text is a short table."""

    path: Path
    layers: Mapping[str, tuple[int, int]]
    """Layer -> d_in and d_out, of those that are recorded, or will be once a gradient reaches them."""
    skipped: Mapping[str, str]
    """Layer -> why it is not."""
    trained: int
    """Numbers of the model that its optimizers train."""
    recorded: int
    """How many of them the layers stand for."""
    answers: str
    """What can be asked under the training's optimizers, one sentence."""
    budget: str = ""
    """What the memory may take, and what is done to hold it; empty where nothing is."""
    bytes_a_step: int | None = None
    """About what the first recorded step takes on disk; None before it. Inputs that repeat take less later on."""
    loops: str = ""
    """What it costs that the compiled loops are missing, and why they are; empty where they are there."""

    def __str__(self) -> str:
        share = f" ({self.recorded / self.trained:.1%})" if self.trained else ""
        lines = [
            f"dualform records {self.recorded:,} of {self.trained:,} trained numbers{share} in {self.path}",
            *_block("recorded", _recorded(self.layers)),
            *_block("skipped", _skipped(self.skipped)),
            f"  {self.answers}",
            *(f"  {text}" for text in (self.budget, self.loops) if text),
        ]
        return "\n".join(lines if self.bytes_a_step is None else [*lines, f"  {readable(self.bytes_a_step)} a step"])


def summary_of(plan: Plan, bytes_a_step: int | None) -> Summary:
    """As it stands now."""
    taps = [tap for tap in plan.taps if tap.name not in plan.skipped]
    # A sharded model does not always hold what the optimizers do: parameters are put together to compute with.
    groups = (group for optimizer in plan.owners.optimizers for group in optimizer.param_groups)
    every = (p for group in groups for p in group["params"]) if plan.sharded else plan.model.parameters()
    trained = {id(p): p for p in every if p.requires_grad and plan.owners.hold(p)}
    return Summary(
        path=plan.path,
        layers={tap.name: (tap.d_in, tap.d_out) for tap in taps},
        skipped=dict(plan.skipped),
        trained=sum(tensor.numel() for tensor in trained.values()),
        recorded=_numbers(taps, trained),
        answers=_answers(plan),
        budget="" if plan.budget is None else str(plan.budget),
        bytes_a_step=bytes_a_step,
        loops=kernels.missed(),
    )


def stored_bytes(batch: Batch, layers: Iterable[Layer]) -> int:
    """About what a batch takes on disk: its keys, its values, and what is said of its slots."""
    total = batch.said_bytes
    for layer in layers:
        for rows in batch.layers.get(layer.name, ()):
            total += len(rows.keys) * layer.key_format.forms[0].row_bytes if layer.keys else 0
            total += 0 if rows.values is None else len(rows.values) * layer.value_format.forms[0].row_bytes
    return total


class DiskForecast:
    """What a run will take on the disk, and whether that has room: after the first step where the number of steps is
    planned, else after a minute. It is made of the first step, and inputs that repeat take less. Used in the training's
    thread; where the disk does not tell its free space, nothing is warned of.
    """

    def __init__(self, path: Path, steps: int | None, ranks: int = 1, most: int | None = None) -> None:
        """`steps`: planned of all runs, None where that is not known; `ranks`: processes that each take as much;
        `most`: bytes of the budget, None for none.
        """
        self._path, self._planned, self._ranks, self._most = path, steps, ranks, most
        self._bytes = 0
        self._began: float | None = None
        """When the first step was over; None before it, and once all is said."""

    def first(self, bytes_a_step: int, done: int = 0) -> str:
        """What follows "3 MB a step": the whole run and the free space, or nothing. `done`: steps of earlier runs."""
        self._bytes = bytes_a_step * self._ranks
        each = f" on each of {self._ranks} ranks" if self._ranks > 1 else ""
        if self._planned is None:
            self._began = monotonic()
            return each
        steps = max(self._planned - done, 1)
        whole, free = self._held(self._bytes * steps), free_bytes(self._path)
        if free is not None and whole > free:
            self._warn(f"{steps:,} steps take about {readable(whole)}, and {readable(free)} is free")
        return f"{each}; {readable(whole)} for {steps:,} steps{_free(free)}"

    def later(self, steps: int) -> str:
        """Of a run of unknown length, which has so many steps by now, as a line; empty except once, after a minute."""
        if self._began is None or (seconds := monotonic() - self._began) < _MINUTE:
            return ""
        self._began = None
        free, a_second = free_bytes(self._path), self._bytes * max(steps - 1, 1) / seconds
        if free is not None and self._held(a_second * _HOUR) > free:
            self._warn(
                f"at {readable(a_second)} a second, {readable(free)} last about {free / a_second / 60:.0f} minutes"
            )
        more = "" if free is None or not self._bytes else f", enough for {free // self._bytes:,} more steps"
        taken = (
            f"{readable(self._bytes)} a step; {readable(self._held(self._bytes * steps))} for {steps:,} steps so far"
        )
        return f"{taken}{_free(free)}{more if self._most is None else ''}"

    def _held(self, count: float) -> float:
        return count if self._most is None else min(count, self._most)

    def _warn(self, what: str) -> None:
        hint = "Record fewer layers (layers=), or set a budget=."
        warnings.warn(f"the disk may not hold the memory: {what}. {hint}", RuntimeWarning, stacklevel=6)


def free_bytes(path: Path) -> int | None:
    """Free on the disk that a folder lies in, or will; None where that is not known."""
    for folder in (path, *path.parents):
        try:
            return shutil.disk_usage(folder).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def _free(free: int | None) -> str:
    return "" if free is None else f"; {readable(free)} free on the disk"


def tell(text: str) -> None:
    """Say something on stderr, where there is one: no training ends by what is said of it."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{text}\n")


def _numbers(taps: Iterable[Tap], trained: Mapping[int, Tensor]) -> int:
    """Numbers of trained parameters that layers stand for; a block that several hold counts once, whatever name of the
    parameter they know it by."""
    blocks = {
        (id(tensor), place.rows, place.columns): place.stored_block_of(tensor).numel()
        for tap in taps
        for place, tensor in tap.parameters.items()
        if id(tensor) in trained
    }
    return sum(blocks.values())


def _answers(plan: Plan) -> str:
    if not plan.keys:
        return "no keys are stored: answer scores and sums with dualform.Rerun"
    if not any(tap.values for tap in plan.taps):
        return "scores and sums; outputs and weights would need values=True"
    reasons = {type(optimizer).__name__: why_no_rule(optimizer) for optimizer in plan.owners.optimizers}
    found = [reason for reason in reasons.values() if reason]
    if followed := " and ".join(name for name, reason in reasons.items() if not reason):
        found.append(f"{followed}: scores, outputs and weights, also with filters and as of every step")
    found += [f"{listed(names)}: only scores: {reason}" for reason, names in _not_followed(plan).items()]
    return "; ".join(found)


def _not_followed(plan: Plan) -> dict[str, list[str]]:
    """Layers whose optimizer has a rule that cannot follow one of their parameters, by the reason."""
    found: dict[str, list[str]] = {}
    for tap in plan.taps:
        for place, tensor in tap.parameters.items():
            optimizer = plan.owners.optimizers[plan.owners.of(tensor)]
            rule = of_type(type(optimizer))
            reason = "" if rule is None else rule.why_not_block(bool(place.rows or place.columns), tensor.ndim)
            if reason:
                found.setdefault(f"{type(optimizer).__name__} {reason}", []).append(tap.name)
                break
    return found


def _recorded(layers: Mapping[str, tuple[int, int]]) -> list[str]:
    """Layers, and from what width to what width they go."""
    shown = _patterns(layers)
    width = max((len(name) for name in shown), default=0)
    lines = []
    for name, own in shown.items():
        shapes = list(dict.fromkeys(f"{layers[one][0]} -> {layers[one][1]}" for one in own))
        lines.append(f"{name:{width}}  {shapes[0]}{' and others' if len(shapes) > 1 else ''}")
    return lines


def _skipped(skipped: Mapping[str, str]) -> list[str]:
    """Layers that share a reason, and the reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in skipped.items():
        by_reason.setdefault(reason, []).append(name or "the model itself")
    return [f"{listed(names)}: {reason}" for reason, names in by_reason.items()]


def listed(names: Iterable[str]) -> str:
    """Names in a line."""
    shown = list(_patterns(names))
    more = len(shown) - LISTED
    return ", ".join(shown) if more <= 0 else f"{', '.join(shown[:LISTED])} and {more} more"


def _patterns(names: Iterable[str]) -> dict[str, list[str]]:
    """Names as they are shown -> names: where there are many, with * for what those of a kind number."""
    every, found = list(names), dict[str, list[str]]()
    for name in every:
        found.setdefault(re.sub(r"(?<![^.])\d+(?![^.])", "*", name), []).append(name)
    if len(every) <= LISTED:
        return {name: [name] for name in every}
    kinds = {f"{kind} ({len(own)})": own for kind, own in found.items() if len(own) > 2}
    alone = {name: [name] for own in found.values() if len(own) <= 2 for name in own}
    return dict(sorted((kinds | alone).items(), key=lambda shown: every.index(shown[1][0])))


def _block(head: str, rows: Sequence[str]) -> list[str]:
    """Lines with the head beside the first."""
    lines = list(rows[:SHOWN])
    lines += [f"and {len(rows) - SHOWN} lines more, which recorder.summary has"] if len(rows) > SHOWN else []
    return [f"  {'' if number else head:8}  {line}" for number, line in enumerate(lines)]
