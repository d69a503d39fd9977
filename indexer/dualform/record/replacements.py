"""What comes to stand in the places of recorded parameters and of the optimizer's buffers while a training runs."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

from torch import Tensor, nn
from torch.optim import Optimizer

from dualform.record.live_tensors import LiveTensors
from dualform.record.optimizers import buffers_of
from dualform.record.recorded_parameters import RecordedParameters
from dualform.record.sharded_parameters import is_sharded
from dualform.rules import UpdateRule


class Replacements:
    """Looks for tensors that are not those that were there before."""

    def __init__(
        self, parameters: RecordedParameters, model: nn.Module | None, optimizer: Optimizer, rule: UpdateRule | None
    ) -> None:
        """`model`: None where no other tensor may take a parameter's place; `rule`: says which buffers there are."""
        self._parameters, self._optimizer, self._rule = parameters, optimizer, rule
        self._live = None if model is None else LiveTensors(model, (p.parameter for p in parameters))
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
        for index, parameter in enumerate(self._parameters):
            if parameter.lost or not live.has(parameter.parameter):
                continue
            now = live.named(parameter.parameter)
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
