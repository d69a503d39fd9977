"""The updates of all optimizers of a training. Each is measured by itself, with the parameters that it holds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from dualform.record.owners import Owners
from dualform.record.passes import Pass
from dualform.record.taps import Tap
from dualform.record.training import Training
from dualform.record.updates import Row, Updates
from dualform.store.batch import Defect, ParameterGroup, StepLog, WatchLog


class AllUpdates:
    """One `Updates` an optimizer, by the optimizer's number; what they log of one step becomes one log."""

    def __init__(self, owners: Owners, taps: Sequence[Tap], training: Training, measured: Sequence[int] = ()) -> None:
        """`taps` and `measured` as Updates says; `measured`: by optimizer."""
        self._owners, self._ranks = owners, training.ranks
        self._taps = [[tap for tap in taps if number in owners.among(tap.trained)] for number in owners.numbers]
        self._layers = [dict.fromkeys(tap.name for tap in own) for own in self._taps]
        before, alone = dict(enumerate(measured)), len(owners.optimizers) == 1
        self._each = [
            Updates(
                optimizer,
                self._taps[number],
                training,
                None if alone else partial(_holds, owners, number),
                before.get(number, 0),
            )
            for number, optimizer in enumerate(owners.optimizers)
        ]
        self._logged = -1
        """The last step of which a log was taken."""

    @property
    def measured(self) -> tuple[int, ...]:
        """By optimizer, how many updates were measured."""
        return tuple(own.measured for own in self._each)

    def layers_of(self, number: int) -> Collection[str]:
        """The layers of which an optimizer holds a parameter."""
        return self._layers[number]

    def moves(self, number: int) -> bool:
        """Whether an update of an optimizer moves any layer now: torch's optimizers pass over what has no gradient."""
        own = (p for tap in self._taps[number] for p in tap.trained if self._owners.of(p) == number)
        return any(parameter.grad is not None for parameter in own)

    def join(self, taps: Sequence[Tap]) -> None:
        for own, layers in zip(self._each, self._layers, strict=True):
            own.defects.join([tap for tap in taps if tap.name in layers])

    def add(self, step: int, rows: Sequence[Row], fresh: Mapping[int, bool]) -> bool:
        """As Updates has it; `fresh`: by optimizer."""
        finite = True
        for number, (own, layers) in enumerate(zip(self._each, self._layers, strict=True)):
            brought = [row for row in rows if row[0] in layers]
            # Ranks compare what they have pending: a layer may have slots of a step on some of them alone.
            if brought or self._ranks is not None:
                finite = own.add(step, brought, fresh.get(number, False)) and finite
        return finite

    def first_pass(self, passes: Sequence[Pass]) -> int:
        """As Updates has it: the first of any optimizer's."""
        reached = [
            own
            for own, layers in zip(self._each, self._layers, strict=True)
            if any(layer in layers for each in passes for layer in each.signals)
        ]
        return min((own.first_pass(passes) for own in reached), default=0)

    def forget(self, step: int) -> None:
        for own in self._each:
            own.forget(step)

    def awaited(self, number: int) -> bool:
        return self._each[number].awaited

    def await_update(self, numbers: Collection[int], step: int, dtypes: Mapping[str, torch.dtype]) -> None:
        """A step ended without an update of these optimizers."""
        for number in numbers:
            self._each[number].await_update(step, dtypes)

    def close_step(self) -> None:
        for own in self._each:
            own.close_step()

    def update_awaited(self, number: int) -> None:
        self._each[number].update_awaited()

    def update(self, number: int, step: int, dtypes: Mapping[str, torch.dtype]) -> None:
        self._each[number].update(step, dtypes)

    def updated(self, number: int) -> None:
        self._each[number].weights.updated()

    def stray(self, number: int, step: int) -> None:
        self._each[number].stray(step)

    def look(self, step: int) -> None:
        for own in self._each:
            own.weights.look(step)

    def finish(self, step: int, together: bool = False) -> None:
        for own in self._each:
            own.finish(step, together)

    def defect(self, step: int, layer: str, kind: str, reason: str) -> None:
        self._each[0].defects.tell(step, layer, kind, reason)

    def tell_parted(self, step: int) -> None:
        for own in self._each:
            own.tell_parted(step)

    def take(self) -> tuple[list[StepLog], list[Defect], list[WatchLog]]:
        """What no batch has taken along yet."""
        taken = [own.take() for own in self._each]
        defects = [defect for _, own, _ in taken for defect in own]
        watched = sorted((row for *_, own in taken for row in own), key=lambda row: row.step)
        logs = [log for log, _, _ in taken]
        return logs[0] if len(logs) == 1 else list(self._joined(logs)), defects, watched

    def _joined(self, logs: Sequence[Sequence[StepLog]]) -> Iterator[StepLog]:
        """One log a step of those of all optimizers; one more where a step's log was taken and another update came."""
        of_steps: dict[int, dict[int, StepLog]] = {}
        for number, own in enumerate(logs):
            for log in own:
                of_steps.setdefault(log.step, {})[number] = log
        for step, by_number in sorted(of_steps.items()):
            made = [self._numbered(number, log) for number, log in by_number.items() if log.updated]
            before, self._logged = self._logged, max(self._logged, step)
            if made:
                groups = tuple(group for log in made for group in log.groups)
                factors = tuple(factor for log in made for factor in log.factors)
                yield replace(made[0], groups=groups, factors=factors, more=step <= before)
            elif step > before:
                yield StepLog(step, updated=False)

    def _numbered(self, number: int, log: StepLog) -> StepLog:
        """With the optimizer's groups numbered behind those of the optimizers before it."""
        first = sum(len(optimizer.param_groups) for optimizer in self._owners.optimizers[:number])
        groups = tuple(ParameterGroup(own.settings, first + place) for place, own in enumerate(log.groups))
        factors = tuple(replace(own, group=first + own.group, first_step=log.first_step) for own in log.factors)
        return replace(log, groups=groups, factors=factors)


def _holds(owners: Owners, number: int, tensor: Tensor) -> bool:
    return owners.of(tensor) == number
