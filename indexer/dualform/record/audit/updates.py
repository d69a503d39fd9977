"""One log for each update of each optimizer: gradient factors, distances, and reasons."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import isnan
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from dualform.record.audit.defects import Defects, LoneFactors, unexplained_gradients
from dualform.record.audit.drift import roundoff
from dualform.record.audit.parameters import RecordedParameters, WatchedImage
from dualform.record.audit.pending import PendingGradients
from dualform.record.audit.scale import EntryFits, Gradient, GradientFactors, put, rounding_gradients
from dualform.record.audit.weights import ObservedWeights, Replacements
from dualform.record.projection import Doubles, surely_finite
from dualform.record.ranks import TrainingShard
from dualform.record.setup.optimizers import Owners, group_of, read_groups, rule_of, unscaling
from dualform.record.slots.agreement import Agreement
from dualform.record.slots.step_record import Pass
from dualform.record.taps import Tap
from dualform.rules import UpdateRule
from dualform.store.batch import Factor, ParameterGroup, Product, RoundingGradient, StepLog, WatchLog
from dualform.store.weights import Buffers


@dataclass(frozen=True)
class Training:
    """What updates start from, and who takes part in them."""

    model: nn.Module
    """Where another tensor may take a parameter's place."""
    initial: Mapping[str, NDArray[Any]]
    """Its state dict before the first step."""
    buffers: Buffers
    """What the optimizers kept by then."""
    halved: Mapping[str, str]
    """As Header says."""
    ranks: TrainingShard | None
    """This process among those whose gradients are averaged."""
    agreement: Agreement
    """The spaces that they must agree on."""
    defects: Defects
    """Of the layers of all optimizers."""


Row: TypeAlias = tuple[str, Tensor, Tensor | None, Product | None]
"""Of one call of a layer: its name, keys, error signals, and how the training rounded the product of both."""
_SEED = 0


class Updates:
    """Logs and defects of the recorded layers, collected until a batch takes them along."""

    def __init__(
        self,
        optimizer: Optimizer,
        taps: Sequence[Tap],
        training: Training,
        own: Callable[[Tensor], bool] | None = None,
        measured: int = 0,
    ) -> None:
        """Gradients are held against the recorded slots, and weights against the record since the training began.
        `taps` are all layers that may get slots. Without values
        nothing can be rebuilt that gradients would have to explain; where no layer has any, an update is taken to use
        all steps since the last one. `own`: which parameters the optimizer holds, where there are several. `measured`:
        how many updates were, before the training was resumed.
        """
        self._optimizer, self._rule = optimizer, rule_of(optimizer)
        self._ranks, self._agreement = training.ranks, training.agreement
        valued = [tap for tap in taps if tap.values]
        self._valued = {tap.name for tap in valued}
        # A generator of its own: the training's random numbers must come out as without the recorder.
        generator = np.random.default_rng(_SEED)
        first = training.ranks is None or not training.ranks.number
        self._parameters = RecordedParameters(valued, generator, own, first)
        self._factors = GradientFactors(self._parameters, generator, measured) if valued else None
        self._lone = LoneFactors(self._parameters)
        watched = WatchedImage.of(self._parameters, self._rule if valued else None, training.halved, generator)
        self._entries = watched.entries
        self._taps, self._defects = taps, training.defects
        self.weights = ObservedWeights(
            self._parameters,
            watched,
            training.initial,
            training.buffers,
            Replacements(self._parameters, training.model, optimizer, watched.seen or self._rule),
            self._defects,
            self._total if self._parameters.sharded else lambda own: own,
        )
        self._fits = None
        if watched.entries is not None and not self._parameters.sharded:
            self._fits = EntryFits(self._parameters, watched.entries, watched.halves)
        self._pending = PendingGradients(self._parameters, watched.entries, watched.halves)
        self._failure: Exception | None = None
        """What a rule of one's own raised when it was to read its settings."""
        self._unused: list[int] = []
        self._logs: list[StepLog] = []
        self._open: int | None = None
        self._open_dtypes: Mapping[str, torch.dtype] = {}

    @property
    def measured(self) -> int:
        """How many updates were measured, those before the training was resumed among them."""
        return 0 if self._factors is None else self._factors.updates

    @property
    def _joined(self) -> list[int]:
        """Indices of the parameters of layers that have slots."""
        slotted = self._defects.slotted
        return [index for index, own in enumerate(self._parameters) if not slotted.isdisjoint(own.layers)]

    @property
    def awaited(self) -> bool:
        """Whether the last step may still be updated."""
        return self._open is not None

    def add(self, step: int, rows: Sequence[Row], fresh: bool = False) -> bool:
        """Take a step's slots, (layer, keys, errors, product) for each call, as gradients that the next update uses.

        `fresh`: gradients of earlier steps were gone when the first of this step's arrived. False where NaN or
        infinity may be among them.
        """
        self._unused.append(step)
        if self._ranks is None:  # which steps wait is compared between processes
            self._pending.join_oldest()
        valued = [
            (layer, keys, errors, product)
            for layer, keys, errors, product in rows
            if layer in self._valued and errors is not None
        ]
        others = [row for row in rows if row[0] not in self._valued or row[2] is None]
        finite = self._factors is None or self._pending.add(step, valued, fresh)
        return finite and all(surely_finite(part) for row in others for part in row[1:3] if part is not None)

    def first_pass(self, passes: Sequence[Pass]) -> int:
        """Which of a step's backward passes is the first whose gradients are still there."""
        if self._factors is None:
            return 0
        own = self._of_passes
        own.clear()
        for each in passes:
            rows = [
                (layer, signal.keys, signal.errors, None)
                for layer, calls in each.signals.items()
                for signal in calls.values()
                if self._parameters.of_layer(layer) and signal.errors is not None
            ]
            own.add(0, rows, all(each.fresh.values()))
        before, trained, seen = len(self._pending.steps), frozenset(group_of(self._optimizer)), None
        own.steps = [*self._pending.steps, *own.steps]
        if self._parameters.sharded and self._ranks is not None:
            seen = own.sum_over(self._ranks, self._factors.see(trained))
        return max(0, self._factors.start(own.steps, trained, seen) - before)

    @cached_property
    def _of_passes(self) -> PendingGradients:
        """Of the passes of one step, whose gradients are compared."""
        return PendingGradients(self._parameters, None, {})

    def forget(self, step: int) -> None:
        """Take a step back that comes to nothing."""
        self._unused = [other for other in self._unused if other != step]
        self._pending.forget(step)

    def await_update(self, step: int, dtypes: Mapping[str, torch.dtype]) -> None:
        """A step ended without an update; one may follow until the next step begins."""
        self._open, self._open_dtypes = step, dtypes

    def close_step(self) -> None:
        """The awaited update did not come."""
        if self._open is not None:
            self._logs.append(StepLog(self._open, updated=False))
            self._open = None

    def update_awaited(self) -> None:
        """The awaited update came."""
        assert self._open is not None
        step, self._open = self._open, None
        self.update(step, self._open_dtypes, inside=False)

    def update(self, step: int, dtypes: Mapping[str, torch.dtype], inside: bool = True) -> None:
        """The optimizer is about to update at `step`: measure, and log it. `dtypes`: of the step's gradients; `inside`:
        the step still runs.
        """
        changed = self.weights.changed() if inside else None
        groups, settings = group_of(self._optimizer), self._settings()
        first, factors = next(iter(self._unused), step), tuple[Factor, ...]()
        self.weights.follow(step)
        gradients, weights = self._sum_over_ranks(step, frozenset(groups))
        if self._factors is not None:
            error = self._roundoff(dtypes)
            gradient = self._factors.measure(self._pending.steps, frozenset(groups), gradients)
            gradient = self._refined(gradient, error)
            self._factors.renew()
            first = step if gradient.first_step is None else gradient.first_step
            own = [groups.get(id(parameter.tensor), 0) for parameter in self._parameters]
            applied = gradient.factors * unscaling(self._optimizer)
            sums, magnitudes, alone = self._numbers(gradient, applied)
            factors = self._logged(own, applied.tolist(), gradient.residuals.tolist(), alone)
            if not gradient.explained.all():
                self._tell_unexplained(step, gradient, dtypes)
            self._lone.look(gradient)
            terms, of_group = (sums, magnitudes), [settings[group] for group in own]
            self.weights.observe(step - 1, inside=changed, seen=weights)
            if self._failure is not None:
                self.weights.rule_failed(step, self._failure)
            self.weights.check_buffers(step)
            self.weights.advance(step, gradient, terms, applied, of_group, own, error)
            self._pending.clear()
        self._unused = []
        self._logs.append(StepLog(step, True, first, settings, factors))

    def _refined(self, gradient: Gradient, roundoff: Sequence[float]) -> Gradient:
        """With what entries say of it that were rounded as the training did."""
        halved = self._pending.halved_since(gradient.first_step)
        if self._fits is None or not halved.any():
            return gradient
        recorded, _ = self._pending.entries_since(gradient.first_step)
        return self._fits.refined(gradient, recorded, halved, roundoff)

    def _roundoff(self, dtypes: Mapping[str, torch.dtype]) -> list[float]:
        """By parameter, that of the coarsest type that its gradient was computed in."""
        known = {dtype: roundoff(dtype) for dtype in {None, *dtypes.values()}}
        return [max([known[dtypes.get(layer)] for layer in parameter.layers]) for parameter in self._parameters]

    def _sum_over_ranks(self, step: int, trained: frozenset[int]) -> tuple[Doubles | None, Doubles | None]:
        """Returns what is seen of gradients and weights, where each rank sees its own rows alone; else None for both.

        Raises RecordingError where the ranks have a layer in different spaces, or a column of different things.
        """
        if self._ranks is None:
            return None, None
        seen = [self._agreement.news]
        if self._parameters.sharded and self._factors is not None:
            seen += [self._factors.see(trained), self.weights.see()]
        total = self._pending.sum_over(self._ranks, np.concatenate(seen))
        if total is not None:
            seen = np.split(total, np.cumsum([len(own) for own in seen])[:-1])
            self._agreement.check(seen[0], self._ranks)
        elif self._parameters.sharded:
            self.weights.stop()
        self.tell_parted(step)
        return (seen[1], seen[2]) if len(seen) > 1 else (None, None)

    def _total(self, numbers: Doubles) -> Doubles:
        """What all ranks see, of which each sees its own rows; not known where they have parted."""
        assert self._ranks is not None
        found = self._ranks.summed(numbers, [])
        return np.full_like(numbers, np.nan) if found is None else found

    def stray(self, step: int) -> None:
        """The optimizer updates although nothing was recorded since its last update."""
        self.weights.follow(step)
        self.weights.observe(step)
        moved = [tap.name for tap in self._taps if any(own.grad is not None for own in tap.trained)]
        what = f"the optimizer stepped outside recorder.step at step {step}, with gradients that no slot holds"
        self._defects.note(step, moved, "stray", what)

    def finish(self, step: int, together: bool = False) -> None:
        """The recording ends or is flushed, `step` being its last: look at the weights once more; where several ranks
        hold them, if all do so `together`.
        """
        self.weights.follow(step)
        if step >= 0 and (together or not self._parameters.sharded):
            self.weights.observe(step)
            self.tell_parted(step)

    def tell_parted(self, step: int) -> None:
        """Note where the ranks do not measure together any more."""
        if self._ranks is not None and self._ranks.parted:
            self._defects.note(step, [tap.name for tap in self._taps], "ranks", self._ranks.parted)

    def _settings(self) -> tuple[ParameterGroup, ...]:
        """Of each parameter group, under the rule's names."""
        try:
            return read_groups(self._optimizer, self._rule)
        except Exception as error:  # a rule of one's own must not end the training, whatever it raises
            assert self._rule is not None
            self._failure = error
            return tuple(ParameterGroup(UpdateRule.read(self._rule, group)) for group in self._optimizer.param_groups)

    def take(self) -> tuple[list[StepLog], list[WatchLog]]:
        """What no batch has taken along yet."""
        # A layer that has no slots here may have some on another rank, for which the first rank's log speaks.
        joined = {self._parameters[index].name for index in self._joined}
        watched = [row for row in self.weights.take() if self._ranks is not None or row.parameter in joined]
        taken, self._logs = (self._logs, watched), []
        return taken

    def _logged(
        self,
        groups: Sequence[int],
        factors: Sequence[float],
        residuals: Sequence[float],
        alone: Mapping[int, RoundingGradient],
    ) -> tuple[Factor, ...]:
        """Of the parameters of layers with slots, and of what else the optimizer updates: it may get slots later."""
        logged, joined = list[Factor](), set(self._joined)
        for index, (parameter, factor) in enumerate(zip(self._parameters, factors, strict=True)):
            skipped = isnan(factor)
            if index in joined or not skipped:
                known = None if skipped else factor
                own = alone.get(index)
                logged.append(Factor(parameter.name, groups[index], known, residuals[index], alone=own))
        return tuple(logged)

    def _numbers(self, gradient: Gradient, factors: Doubles) -> tuple[Doubles, Doubles, Mapping[int, RoundingGradient]]:
        """Sums and magnitudes of the slots' terms as the watch takes them, and what of it is no slot's."""
        if self._entries is None:
            return gradient.sums, gradient.bounds, {}
        sums, magnitudes = self._pending.entries_since(gradient.first_step)
        scale = unscaling(self._optimizer)
        alone = rounding_gradients(self._parameters, self._entries, gradient, factors, scale, sums, magnitudes)
        put(alone, self._entries, factors, sums, magnitudes)
        return sums, magnitudes, alone

    def _tell_unexplained(self, step: int, gradient: Gradient, dtypes: Mapping[str, torch.dtype]) -> None:
        used = self._pending.since(gradient.first_step)
        joined = [
            index for index in self._joined if not self._defects.noted(self._parameters[index].layers, "gradient")
        ]
        for index, why in unexplained_gradients(self._parameters, joined, gradient, used, dtypes, step):
            self._defects.note(step, self._parameters[index].layers, "gradient", why)


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

    def tell_parted(self, step: int) -> None:
        for own in self._each:
            own.tell_parted(step)

    def take(self) -> tuple[list[StepLog], list[WatchLog]]:
        """What no batch has taken along yet."""
        taken = [own.take() for own in self._each]
        watched = sorted((row for _, own in taken for row in own), key=lambda row: row.step)
        logs = [log for log, _ in taken]
        return logs[0] if len(logs) == 1 else list(self._joined(logs)), watched

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
