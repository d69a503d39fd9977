"""The weights as they are looked at: how far they are from the record, and who wrote to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.record.gradient_factor import Gradient
from dualform.record.layer_defects import LayerDefects
from dualform.record.projection import Doubles
from dualform.record.recorded_parameters import RecordedParameters
from dualform.record.replacements import Replacements
from dualform.record.watch import Watch
from dualform.record.watched_image import WatchedImage
from dualform.store.batch import ParameterGroup, WatchLog
from dualform.store.weights import Buffers


class ObservedWeights:
    """Those of one optimizer's recorded layers."""

    def __init__(
        self,
        parameters: RecordedParameters,
        watched: WatchedImage,
        initial: Mapping[str, NDArray[Any]],
        buffers: Buffers,
        replacements: Replacements,
        defects: LayerDefects,
        total: Callable[[Doubles], Doubles] = lambda own: own,
    ) -> None:
        """`initial`, `buffers` and `total`: as Watch says."""
        self._parameters, self._replacements, self._defects = parameters, replacements, defects
        self._watch: Watch | None = None
        if watched.image is not None:
            self._watch = Watch(parameters, watched.image, watched.rules, initial, buffers, total)
        self._watched = watched
        self._logs: list[WatchLog] = []
        self._moved: Sequence[int] = ()
        """Parameters that were written to since the last step, when this one began."""

    def changed(self) -> NDArray[np.bool_] | None:
        """As Watch has it."""
        return None if self._watch is None else self._watch.changed()

    def updated(self) -> None:
        """The optimizer has written the weights."""
        if self._watch is not None:
            self._watch.updated()
        self._replacements.updated()

    def look(self, step: int) -> None:
        """A step begins or ends, `step` being the last one that is over: look at weights written without an update.

        Where several processes hold parts of them, the next update looks at all.
        """
        self.follow(step)
        self._moved = ()
        if self._parameters.sharded:
            return
        if self._watch is not None and (changed := self._watch.changed()) is not None:
            self.observe(step, changed)
            self._moved = self._watch.jumped

    def see(self) -> Doubles:
        """As Watch has it."""
        return np.zeros(0) if self._watch is None else self._watch.see()

    def stop(self) -> None:
        """As Watch has it."""
        if self._watch is not None:
            self._watch.stop()

    def observe(
        self,
        step: int,
        chosen: NDArray[np.bool_] | None = None,
        inside: NDArray[np.bool_] | None = None,
        seen: Doubles | None = None,
    ) -> None:
        """Look at the weights as they are after `step`, and tell who wrote to them; `inside`: as `_tell_inside`;
        `seen`: as Watch says.
        """
        if self._watch is None:
            return
        self._logs += self._watch.observe(step, chosen, seen)
        if inside is not None:
            self._tell_inside(step, inside)
        for index in self._watch.take_written():
            after = max(step, 0)
            what = f"weights were changed outside the optimizer's update, after that of step {after}"
            self._defects.tell_of(after, index, "written", what)

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
                self._defects.tell_of(max(step, 0), index, "inside", what)

    def follow(self, step: int) -> None:
        """Look at the tensors that stand in the places of the recorded ones from now on."""
        for index, what in self._replacements.follow():
            if self._watch is not None:
                self._watch.follow(index)
            name, after = self._parameters[index].name, max(step, 0)
            self._defects.tell_of(after, index, "replaced", f"{name} {what} at step {after}")

    def check_buffers(self, step: int) -> None:
        """Tell of buffers of the optimizer's that are not, before `step`, as its last update left them."""
        for index, what in self._replacements.of_buffers():
            self._defects.tell_of(step, index, "buffer", f"{what} before step {step}")
            if self._watch is not None:
                self._watch.doubt(index)

    def advance(
        self,
        step: int,
        gradient: Gradient,
        terms: tuple[Doubles, Doubles],
        factors: Doubles,
        settings: Sequence[ParameterGroup],
        groups: Sequence[int],
        error: Sequence[float],
    ) -> None:
        """The optimizer is about to make the update of `step`; `terms`: sums and magnitudes of the slots' terms;
        `settings` and `groups`: of each parameter; `error`: relative rounding of what its gradient was computed in.
        """
        if self._watch is None:
            return
        own = zip(groups, (group.settings for group in settings), strict=True)
        if self._watched.entries is not None:
            for index in np.flatnonzero(~gradient.explained).tolist():
                if not gradient.rounding_explains(index, error[index], self._parameters[index]):
                    self._watch.doubt(index)
        try:
            self._watch.advance(*terms, factors, list(own), np.array(error))
        except Exception as failure:  # a rule of one's own must not end the training, whatever it raises
            self.rule_failed(step, failure)

    def rule_failed(self, step: int, error: Exception) -> None:
        """The watch goes on without its rule, and knows nothing from this update on."""
        assert self._watched.seen is not None
        what = f"update rule {self._watched.seen.name!r} raised {type(error).__name__} at step {step}: {error}"
        self._defects.tell_all(step, "rule", what)
        self.stop()

    def take(self) -> list[WatchLog]:
        """What no batch has taken along yet."""
        taken, self._logs = self._logs, []
        return taken
