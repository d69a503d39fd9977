"""The backward passes of one step. Gradients of some may be gone by its update: those of the first pass of SAM, which
moves the weights. A pass for the gradient of the inputs alone is none.

A pass is one task of the autograd engine, or several after one another none of which brings a layer again: reentrant
checkpointing runs one for each of its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from dualform.record.owners import Owners
from dualform.record.sharded_parameters import held, is_sharded
from dualform.record.signal import Signal
from dualform.record.taps import Tap


@dataclass
class Pass:
    """What came in one pass."""

    fresh: dict[int, bool] = field(default_factory=dict)
    """By optimizer, whether no gradient of earlier passes was there when the first of this one's arrived."""
    signals: dict[str, dict[int, Signal]] = field(default_factory=dict)
    """By layer and call."""

    def add(self, layer: str, call: int, signal: Signal) -> None:
        calls = self.signals.setdefault(layer, {})
        if call in calls:
            calls[call].add(signal)
        else:
            calls[call] = signal

    def take(self, other: Pass) -> None:
        """Make it that of both, of which the other came later."""
        for layer, calls in other.signals.items():
            for call, signal in calls.items():
                self.add(layer, call, signal)
        self.fresh = {**other.fresh, **self.fresh}


class Passes:
    """Those of a step, in their order."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._of_tasks: dict[int, Pass | None] = {}
        """By task of the engine; None for one that changes no weight's gradient."""
        self._whole: Pass | None = None

    def now(self, tap: Tap) -> Pass | None:
        """The one that runs, which has come to a layer; None where it is not for the weights' gradients."""
        task = torch._C._current_graph_task_id()
        # Asked again where it was none so far: backward(inputs=…) may be for the weights of some layers alone.
        if self._of_tasks.get(task) is None:
            self._of_tasks[task] = Pass() if _is_for(tap.trained) else None
        found = self._of_tasks[task]
        if found is not None:
            self._whole = None
            if len(found.fresh) < len(self._owners.optimizers):
                self._look_for_earlier(tap, found)
        return found

    def _look_for_earlier(self, tap: Tap, found: Pass) -> None:
        """At the first layer of each optimizer that a gradient reaches."""
        for number, own in self._owners.among(tap.trained).items():
            # A layer's own gradients come after its outputs': what is there is of earlier passes.
            if number not in found.fresh:
                found.fresh[number] = all(p.grad is None or not held(p.grad).any() for p in own)

    @property
    def apart(self) -> Sequence[Pass]:
        """Each by itself."""
        found = list[Pass]()
        for own in self._of_tasks.values():
            if own is None:
                continue
            if found and not found[-1].signals.keys() & own.signals.keys():
                found[-1].take(own)
            else:
                found.append(Pass(dict(own.fresh), {layer: dict(calls) for layer, calls in own.signals.items()}))
        return found

    @property
    def whole(self) -> Pass:
        """All of them together: a call's error signals add up."""
        if self._whole is None:
            tasks = [own for own in self._of_tasks.values() if own is not None]
            self._whole = tasks[0] if len(tasks) == 1 else _together(tasks)
        return self._whole

    def keep(self, first: int) -> set[str]:
        """Leave out those before the `first` of `apart`; returns the layers that have nothing left."""
        kept = _together(self.apart[first:])
        lost = self.whole.signals.keys() - kept.signals.keys()
        self._of_tasks, self._whole = {-1: kept}, None
        return lost


def _together(passes: Iterable[Pass]) -> Pass:
    found = Pass()
    for own in passes:
        copied = {layer: {call: s.copied() for call, s in calls.items()} for layer, calls in own.signals.items()}
        found.take(Pass(own.fresh, copied))
    return found


def _is_for(parameters: Iterable[Tensor]) -> bool:
    """Whether the task that runs adds to the gradient of one of these; also where nobody can tell."""
    # A layer that is sharded over ranks computes with another tensor, which was put together for it.
    leaves = [own for own in parameters if own.is_leaf and own.requires_grad and not is_sharded(own)]
    if torch._C._current_graph_task_id() < 0 or not leaves:
        return True
    try:
        return any(torch._C._will_engine_execute_node(get_gradient_edge(leaf).node) for leaf in leaves)
    except (RuntimeError, NotImplementedError):  # torch.autograd.grad, asked for a parameter's gradient
        return True
    except AttributeError:  # in the backward pass of compiled code no view has a gradient function
        return True
