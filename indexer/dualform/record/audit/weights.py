"""Reading the weights of a running training: replaced tensors, writes from outside, distances."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from dualform.record.audit.defects import Defects
from dualform.record.audit.drift import Watch
from dualform.record.audit.parameters import RecordedParameters, WatchedImage
from dualform.record.audit.scale import Gradient
from dualform.record.projection import Doubles
from dualform.record.ranks import is_sharded
from dualform.record.setup.optimizers import buffers_of
from dualform.rules import UpdateRule
from dualform.store.batch import ParameterGroup, WatchLog
from dualform.store.weights import Buffers


class LiveTensors:
    """Looks parameters up by name, however modules and parameters were replaced since."""

    def __init__(self, model: nn.Module, names: Iterable[str]) -> None:
        """Names that the model does not have, as those of taps of one's own may be, are never looked up again."""
        self._model = model
        self._modules, self._parameters = list[tuple[nn.Module, str, Any]](), list[tuple[nn.Module, str, Any]]()
        """Where all of it was found last, each in a dictionary of a module; empty if some of it was found elsewhere."""
        self._found: dict[str, Tensor | None] = {}
        paths = {name: tuple(name.split(".")) for name in names}
        self._places = {name: (path[:-1], path[-1]) for name, path in paths.items()}
        self._places = {name: self._places[name] for name, own in self.standing().items() if own is not None}

    def standing(self) -> dict[str, Tensor | None]:
        """By the names that the model had when recording began, the tensors that it has now; None where it has none."""
        if not (self._parameters and self._unmoved()):
            self._modules, self._parameters = [], []
            modules = {path: self._module(path) for path in dict.fromkeys(path for path, _ in self._places.values())}
            self._found = {name: self._of(modules[path], last) for name, (path, last) in self._places.items()}
            plain = all(type(own._modules) is dict for own, *_ in self._modules)
            if not plain or len(self._parameters) < len(self._found):
                self._parameters = []
        return self._found

    def _unmoved(self) -> bool:
        """Whether every module and parameter stands where it was found last."""
        return all(own._modules.get(name) is there for own, name, there in self._modules) and all(
            own._parameters.get(name) is there for own, name, there in self._parameters
        )

    def _module(self, path: Sequence[str]) -> Any:
        """The module of a path; None where there is none any more."""
        module: Any = self._model
        for part in path:
            if module is None or part not in module._modules:  # of torch.jit these are no dicts, and have no get
                return None
            self._modules.append((module, part, module._modules[part]))
            module = module._modules[part]
        return module

    def _of(self, module: Any, name: str) -> Tensor | None:
        if module is None:
            return None
        own = module._parameters
        if type(own) is dict and own.get(name) is not None:
            self._parameters.append((module, name, own[name]))
        # Where it is none of its parameters, it was pruned or parametrized since: what the module computes with.
        found = own[name] if name in own else getattr(module, name, None)
        return found if isinstance(found, Tensor) else None


class Replacements:
    """Looks for tensors that are not those that were there before."""

    def __init__(
        self, parameters: RecordedParameters, model: nn.Module | None, optimizer: Optimizer, rule: UpdateRule | None
    ) -> None:
        """`model`: None where no other tensor may take a parameter's place; `rule`: says which buffers there are."""
        self._parameters, self._optimizer, self._rule = parameters, optimizer, rule
        self._names = [parameter.parameter for parameter in parameters]
        self._live = None if model is None else LiveTensors(model, self._names)
        self._tensors = [parameter.tensor for parameter in parameters]
        """Those that stand in the parameters' places now."""
        self._buffers: list[Tensor | float | None] | None = None
        """The optimizer's buffers as its last update left them."""
        self._versioned = rule is not None and rule.commutes_with == "entries"
        """Whether writes into them must be told: directions show what becomes of them."""
        self._versions: list[int] = []
        if self._versioned:
            self.updated()

    def follow(self) -> Sequence[tuple[int, str]]:
        """Look at the tensors that stand in the places of the recorded ones from now on; returns, by the parameter's
        index, what became of those that do not stand there any more.
        """
        live, found = self._live, list[tuple[int, str]]()
        if live is None:
            return found
        standing = live.standing()
        for index, (parameter, name) in enumerate(zip(self._parameters, self._names, strict=True)):
            if parameter.lost or name not in standing:
                continue
            now = standing[name]
            if now is parameter.tensor and now.shape == parameter.shape:
                continue
            if is_sharded(parameter.tensor) and now is not None and not is_sharded(now):
                continue  # what was put together of it stands there while the model computes
            if now is None or now.shape != parameter.shape:
                parameter.lost, what = True, "is no longer a tensor of its shape"
            else:
                parameter.tensor, what = now, "was replaced by another tensor"
                self._tensors[index] = now
            found.append((index, what))
        return found

    def updated(self) -> None:
        """The optimizer has written the weights, and its buffers."""
        if self._rule is not None:
            self._buffers = buffers_of(self._optimizer, self._rule, self._tensors)
            self._versions = self._versions_of(self._buffers)

    def of_buffers(self) -> Sequence[tuple[int, str]]:
        """By the parameter's index, what became of buffers that are not those that the last update left, as where a
        state is cleared or loaded, or written to.
        """
        if self._buffers is None or self._rule is None:
            return []
        now = buffers_of(self._optimizer, self._rule, self._tensors)
        versions = self._versions_of(now)
        if versions == self._versions and all(map(is_, now, self._buffers)):
            return []
        kinds = (*self._rule.buffers, *self._rule.statistics)
        found = list[tuple[int, str]]()
        for place, (buffer, before) in enumerate(zip(now, self._buffers, strict=True)):
            index, kind = place // len(kinds), kinds[place % len(kinds)]
            if buffer is not before:
                what = "cleared" if buffer is None else "replaced"
            elif self._versioned and versions[place] != self._versions[place]:
                what = "written to"
            else:
                continue
            found.append((index, f"the optimizer's {kind} of {self._parameters[index].name} was {what}"))
        return found

    def _versions_of(self, buffers: Sequence[Tensor | float | None]) -> list[int]:
        """What changes when a buffer is written to."""
        if not self._versioned:
            return []
        return [buffer._version if isinstance(buffer, Tensor) else 0 for buffer in buffers]


class ObservedWeights:
    """Those of one optimizer's recorded layers."""

    def __init__(
        self,
        parameters: RecordedParameters,
        watched: WatchedImage,
        initial: Mapping[str, NDArray[Any]],
        buffers: Buffers,
        replacements: Replacements,
        defects: Defects,
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
            self._defects.note(after, self._parameters[index].layers, "written", what)

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
                self._defects.note(max(step, 0), self._parameters[index].layers, "inside", what)

    def follow(self, step: int) -> None:
        """Look at the tensors that stand in the places of the recorded ones from now on."""
        for index, what in self._replacements.follow():
            if self._watch is not None:
                self._watch.follow(index)
            name, after = self._parameters[index].name, max(step, 0)
            self._defects.note(after, self._parameters[index].layers, "replaced", f"{name} {what} at step {after}")

    def check_buffers(self, step: int) -> None:
        """Tell of buffers of the optimizer's that are not, before `step`, as its last update left them."""
        for index, what in self._replacements.of_buffers():
            self._defects.note(step, self._parameters[index].layers, "buffer", f"{what} before step {step}")
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
        for parameter in self._parameters:
            self._defects.note(step, parameter.layers, "rule", what)
        self.stop()

    def take(self) -> list[WatchLog]:
        """What no batch has taken along yet."""
        taken, self._logs = self._logs, []
        return taken
