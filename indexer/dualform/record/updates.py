"""What the optimizer did: one log an update, how far the weights are from the record, and what may be the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isnan
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from dualform.record.entry_fits import EntryFits
from dualform.record.gradient_factor import Gradient, GradientFactors, why_unexplained
from dualform.record.image import Image
from dualform.record.optimizers import group_of, read_groups, rule_of, unscaling
from dualform.record.passes import Pass
from dualform.record.pending_gradients import PendingGradients
from dualform.record.placement import Placement
from dualform.record.projection import Doubles, surely_finite
from dualform.record.recorded_entries import RecordedEntries
from dualform.record.recorded_parameters import RecordedParameter, RecordedParameters
from dualform.record.replacements import Replacements
from dualform.record.rounding_gradients import put, rounding_gradients
from dualform.record.taps import Tap
from dualform.record.training_shard import TrainingShard
from dualform.record.watch import Watch, roundoff
from dualform.rules import UpdateRule
from dualform.rules.half_precision import Half
from dualform.rules.halved import Halved
from dualform.store.batch import Defect, Factor, ParameterGroup, Product, RoundingGradient, StepLog, WatchLog
from dualform.store.weights import Buffers

Row: TypeAlias = tuple[str, Tensor, Tensor | None, Product | None]
"""Of one call of a layer: its name, keys, error signals, and how the training rounded the product of both."""
_SEED = 0


class Updates:
    """Logs and defects of the recorded layers, collected until a batch takes them along."""

    def __init__(
        self,
        optimizer: Optimizer,
        taps: Sequence[Tap],
        initial: Mapping[str, NDArray[Any]] | None = None,
        buffers: Buffers | None = None,
        model: nn.Module | None = None,
        ranks: TrainingShard | None = None,
        placement: Placement | None = None,
        own: Callable[[Tensor], bool] | None = None,
        told: set[tuple[str, str]] | None = None,
        halved: Mapping[str, str] | None = None,
        measured: int = 0,
    ) -> None:
        """Gradients are held against the recorded slots, and weights against the record since `initial`: the model's
        state dict before the first step, with the optimizer's `buffers` by then. `taps` are all layers that may get
        slots; what is told begins for each once it has some (`join`). Without values nothing can be rebuilt that
        gradients would have to explain; where no layer has any, an update is taken to use all steps since the last one.
        `model`: where another tensor may take a parameter's place. `ranks`: this process among those whose gradients
        are averaged, and `placement`: the spaces that they must agree on. `own`: which parameters the optimizer holds,
        where there are several; `told`: what of which layer was told of already, of all of them. `halved`: see Header.
        `measured`: how many updates were, before the training was resumed.
        """
        self._optimizer, self._rule = optimizer, rule_of(optimizer)
        self._ranks, self._placement = ranks, placement
        self._taps: list[Tap] = []
        """Those that have slots."""
        valued = [tap for tap in taps if tap.values]
        self._valued = {tap.name for tap in valued}
        # A generator of its own: the training's random numbers must come out as without the recorder.
        generator = np.random.default_rng(_SEED)
        self._parameters = RecordedParameters(valued, generator, own)
        self._factors = GradientFactors(self._parameters, generator, measured) if valued else None
        self._watch: Watch | None = None
        self._entries: RecordedEntries | None = None
        """Where the rule is watched through entries."""
        halves: dict[int, Half] = {}
        seen = self._rule
        """The rule as the weights are looked at."""
        if valued and self._rule is not None and self._rule.commutes_with:
            rules = [self._rule_of(parameter, halved or {}) for parameter in self._parameters]
            halves = {index: rule.half for index, rule in enumerate(rules) if isinstance(rule, Halved)}
            seen = rules[next(iter(halves))] if halves else self._rule
            image: Image = self._parameters
            if seen.commutes_with == "entries":
                image = self._entries = RecordedEntries(self._parameters, generator)
            self._watch = Watch(self._parameters, image, rules, initial or {}, buffers or {})
        self._fits = None if self._entries is None else EntryFits(self._parameters, self._entries, halves)
        self._pending = PendingGradients(self._parameters, self._entries, halves)
        self._replacements = Replacements(self._parameters, model, optimizer, seen)
        self._failure: Exception | None = None
        """What a rule of one's own raised when it was to read its settings."""
        self._joined: set[int] = set()
        """Parameters of layers that have slots, by index."""
        self._joined_names: set[str] = set()
        self._unused: list[int] = []
        self._logs: list[StepLog] = []
        self._defects: list[Defect] = []
        self._watched: list[WatchLog] = []
        self._told: set[tuple[str, str]] = set() if told is None else told
        self._moved: Sequence[int] = ()
        """Parameters that were written to since the last step, when this one began."""
        self._open: int | None = None
        self._open_dtypes: Mapping[str, torch.dtype] = {}

    def _rule_of(self, parameter: RecordedParameter, halved: Mapping[str, str]) -> UpdateRule:
        """Of one parameter, which rounds its updates where it is of half precision."""
        assert self._rule is not None
        dtype = halved.get(parameter.parameter)
        return Halved(self._rule, dtype) if dtype else self._rule

    def join(self, taps: Sequence[Tap]) -> None:
        """These layers have slots from now on."""
        self._taps += taps
        names = {tap.name for tap in self._taps}
        self._joined = {i for i, parameter in enumerate(self._parameters) if names.intersection(parameter.layers)}
        self._joined_names = {self._parameters[index].name for index in self._joined}

    @property
    def measured(self) -> int:
        """How many updates were measured, those before the training was resumed among them."""
        return 0 if self._factors is None else self._factors.updates

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
        own = PendingGradients(self._parameters, None, {})
        for each in passes:
            rows = [
                (layer, signal.keys, signal.errors, None)
                for layer, calls in each.signals.items()
                for signal in calls.values()
                if self._parameters.of_layer(layer) and signal.errors is not None
            ]
            own.add(0, rows, all(each.fresh.values()))
        before = len(self._pending.steps)
        start = self._factors.start([*self._pending.steps, *own.steps], frozenset(group_of(self._optimizer)))
        return max(0, start - before)

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
        changed = self._watch.changed() if inside and self._watch is not None else None
        groups, settings = group_of(self._optimizer), self._settings()
        first, factors = next(iter(self._unused), step), tuple[Factor, ...]()
        self._follow(step)
        self._sum_over_ranks(step)
        if self._factors is not None:
            error = self._roundoff(dtypes)
            gradient = self._refined(self._factors.measure(self._pending.steps, frozenset(groups)), error)
            self._factors.renew()
            first = step if gradient.first_step is None else gradient.first_step
            own = [groups.get(id(parameter.tensor), 0) for parameter in self._parameters]
            applied = gradient.factors * unscaling(self._optimizer)
            sums, magnitudes, alone = self._numbers(gradient, applied)
            factors = self._logged(own, applied.tolist(), gradient.residuals.tolist(), alone)
            self._tell_unexplained(step, gradient, dtypes)
            terms, of_group = (sums, magnitudes), [settings[group] for group in own]
            self._watch_update(step, gradient, terms, applied, of_group, own, error, changed)
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

    def _sum_over_ranks(self, step: int) -> None:
        """Raises RecordingError where the ranks have a layer in different spaces."""
        if self._ranks is None:
            return
        places = np.zeros(0) if self._placement is None else self._placement.numbers
        total = self._pending.sum_over(self._ranks, places)
        if total is not None and self._placement is not None:
            self._placement.check(total)
        self.tell_parted(step)

    def updated(self) -> None:
        """The optimizer has written the weights."""
        if self._watch is not None:
            self._watch.updated()
        self._replacements.updated()

    def stray(self, step: int) -> None:
        """The optimizer updates although nothing was recorded since its last update."""
        self._follow(step)
        self._observe(step)
        for tap in self._taps:
            if any(parameter.grad is not None for parameter in tap.trained):
                self.defect(
                    step, tap.name, "stray", f"the optimizer stepped outside recorder.step at step {step}, "
                    "with gradients that no slot holds"
                )  # fmt: skip

    def look(self, step: int) -> None:
        """A step begins or ends, `step` being the last one that is over: look at weights written without an update."""
        self._follow(step)
        self._moved = ()
        if self._watch is not None and (changed := self._watch.changed()) is not None:
            self._observe(step, changed)
            self._moved = self._watch.jumped

    def finish(self, step: int) -> None:
        """The recording ends or is flushed, `step` being its last: look at the weights once more."""
        self._follow(step)
        if step >= 0:
            self._observe(step)

    def _observe(
        self, step: int, chosen: NDArray[np.bool_] | None = None, inside: NDArray[np.bool_] | None = None
    ) -> None:
        """Look at the weights as they are after `step`, and tell who wrote to them."""
        if self._watch is None:
            return
        self._watched += self._watch.observe(step, chosen)
        if inside is not None:
            self._tell_inside(step, inside)
        for index in self._watch.take_written():
            after = max(step, 0)
            what = f"weights were changed outside the optimizer's update, after that of step {after}"
            self._tell(after, index, "written", what)

    def _tell_inside(self, step: int, changed: NDArray[np.bool_]) -> None:
        """Weights `changed` inside a step before its update, which began with others than the last one had left; of
        what came before the first step nothing is known.
        """
        assert self._watch is not None
        for index in self._watch.jumped:
            if changed[index] and (step < 0 or index in self._moved):
                what = (
                    f"weights were changed inside step {step + 1}, before its update; where SAM moves them, its first "
                    "pass belongs into the step, too"
                )
                self._tell(max(step, 0), index, "inside", what)

    def _tell(self, step: int, index: int, kind: str, reason: str) -> None:
        """Of the layers of a parameter that have slots."""
        for layer in self._layers_of(self._parameters[index]):
            self.defect(step, layer, kind, reason)

    def _settings(self) -> tuple[ParameterGroup, ...]:
        """Of each parameter group, under the rule's names."""
        try:
            return read_groups(self._optimizer, self._rule)
        except Exception as error:  # a rule of one's own must not end the training, whatever it raises
            assert self._rule is not None
            self._failure = error
            return tuple(ParameterGroup(UpdateRule.read(self._rule, group)) for group in self._optimizer.param_groups)

    def _rule_failed(self, step: int, error: Exception) -> None:
        """The watch goes on without its rule, and knows nothing from this update on."""
        assert self._rule is not None
        what = f"update rule {self._rule.name!r} raised {type(error).__name__} at step {step}: {error}"
        for tap in self._taps:
            self.defect(step, tap.name, "rule", what)
        if self._watch is not None:
            self._watch.stop()

    def _follow(self, step: int) -> None:
        """Look at the tensors that stand in the places of the recorded ones from now on."""
        for index, what in self._replacements.follow():
            parameter = self._parameters[index]
            if self._watch is not None:
                self._watch.follow(index)
            self._tell(max(step, 0), index, "replaced", f"{parameter.name} {what} at step {max(step, 0)}")

    def defect(self, step: int, layer: str, kind: str, reason: str) -> None:
        """Note what may make a layer inexact from `step` on; once for each kind."""
        if (layer, kind) not in self._told:
            self._told.add((layer, kind))
            self._defects.append(Defect(step, layer, reason))

    def tell_parted(self, step: int) -> None:
        """Note where the ranks do not measure together any more."""
        if self._ranks is not None and self._ranks.parted:
            for tap in self._taps:
                self.defect(step, tap.name, "ranks", self._ranks.parted)

    def take(self) -> tuple[list[StepLog], list[Defect], list[WatchLog]]:
        """What no batch has taken along yet."""
        # A layer that has no slots here may have some on another rank, for which the first rank's log speaks.
        watched = [row for row in self._watched if self._ranks is not None or row.parameter in self._joined_names]
        taken = self._logs, self._defects, watched
        self._logs, self._defects, self._watched = [], [], []
        return taken

    def _layers_of(self, parameter: RecordedParameter) -> list[str]:
        """Those that have slots."""
        joined = {tap.name for tap in self._taps}
        return [layer for layer in parameter.layers if layer in joined]

    def _logged(
        self,
        groups: Sequence[int],
        factors: Sequence[float],
        residuals: Sequence[float],
        alone: Mapping[int, RoundingGradient],
    ) -> tuple[Factor, ...]:
        """Of the parameters of layers with slots, and of what else the optimizer updates: it may get slots later."""
        logged = list[Factor]()
        for index, (parameter, factor) in enumerate(zip(self._parameters, factors, strict=True)):
            skipped = isnan(factor)
            if index in self._joined or not skipped:
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

    def _watch_update(
        self,
        step: int,
        gradient: Gradient,
        terms: tuple[Doubles, Doubles],
        factors: Doubles,
        settings: Sequence[ParameterGroup],
        groups: Sequence[int],
        error: Sequence[float],
        changed: NDArray[np.bool_] | None,
    ) -> None:
        """The weights as they are before the update of `step`, and the update; `terms`: as `_numbers` has them;
        `changed`: the weights that were written to inside the step.
        """
        self._observe(step - 1, inside=changed)
        if self._failure is not None:
            self._rule_failed(step, self._failure)
        for index, what in self._replacements.of_buffers():
            self._tell(step, index, "buffer", f"{what} before step {step}")
            if self._watch is not None:
                self._watch.doubt(index)
        if self._watch is None:
            return
        own = zip(groups, (group.settings for group in settings), strict=True)
        if self._entries is not None:
            for index in np.flatnonzero(~gradient.explained).tolist():
                if not gradient.rounding_explains(index, error[index], self._parameters[index]):
                    self._watch.doubt(index)
        try:
            self._watch.advance(*terms, factors, list(own), np.array(error))
        except Exception as failure:  # a rule of one's own must not end the training, whatever it raises
            self._rule_failed(step, failure)

    def _tell_unexplained(self, step: int, gradient: Gradient, dtypes: Mapping[str, torch.dtype]) -> None:
        if gradient.explained.all():
            return
        for index in sorted(self._joined):
            parameter, residual = self._parameters[index], float(gradient.residuals[index])
            coarsest = max((dtypes.get(layer) for layer in parameter.layers), key=roundoff)
            for layer in () if gradient.explained[index] else self._layers_of(parameter):
                why = why_unexplained(residual, parameter.name, step, coarsest)
                self.defect(step, layer, "gradient", why)
