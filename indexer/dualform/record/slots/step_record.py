"""What the adapters collect in one step, pass by pass.

What the taps bring in one step.

Shapes: B rows, `L...` token dimensions, d_in and d_out of a layer.

The backward passes of one step. Gradients of some may be gone by its update: those of the first pass of SAM, which
moves the weights. A pass for the gradient of the inputs alone is none.

A pass is one task of the autograd engine, or several after one another none of which brings a layer again: reentrant
checkpointing runs one for each of its parts.

In which order a forward pass made its calls, where checkpointing runs some of them again within the backward pass.

Reentrant checkpointing makes a forward call without a gradient at first, and again, with one, when its part of the
graph is gone back through: the last part first. Each part is a node of the graph, and its number says when the forward
pass came to it. A part within a part has a node that was made when that one ran again.
"""

from __future__ import annotations

import warnings
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.compiler import is_compiling

from dualform.errors import RecordingError
from dualform.record.layout import HALVED, Signal, owned_rows
from dualform.record.lineage import Known, KnownRows
from dualform.record.projection import surely_finite
from dualform.record.query_sets import QuerySetTaker
from dualform.record.ranks import held, is_sharded
from dualform.record.setup.optimizers import Owners
from dualform.record.slots.columns import Metadata
from dualform.record.taps import Tap
from dualform.record.taps.watcher import step_begins
from dualform.store.batch import Product

Moment: TypeAlias = tuple[int, ...]
"""When a call was made: the numbers of the parts around it, the outermost first, and its own. They sort as calls do."""


class CallOrder:
    """Of the calls of one step."""

    def __init__(self) -> None:
        self._without_gradient: dict[int, list[tuple[int, Moment | None]]] = {}
        """By thread: of calls without a gradient, the graph's number then, and the parts that they were in."""

    def now(self) -> Moment | None:
        """Of a call that is made now; None where nothing tells in which part it is, and nothing in compiled code."""
        if is_compiling():
            return ()
        parts = self._parts()
        return None if parts is None else (*parts, torch._C._autograd._get_sequence_nr())

    def without_gradient(self) -> None:
        """A call is made now that may be the first of a part."""
        if is_compiling():
            return
        seen = self._without_gradient.setdefault(get_ident(), [])
        seen.append((torch._C._autograd._get_sequence_nr(), self._parts()))

    def _parts(self) -> Moment | None:
        """Those that run now again, the outermost first."""
        node = torch._C._current_autograd_node()
        if node is None:
            return ()
        number = node._sequence_nr()
        # The part's own first call was the next one after its node was made, and each thread numbers nodes by itself.
        first = [
            seen[place][1]
            for seen in self._without_gradient.values()
            if (place := bisect_right(seen, number, key=lambda call: call[0])) < len(seen)
        ]
        if not first or None in first or len(set(first)) > 1:
            return None
        (around,) = set(first)
        assert around is not None
        return (*around, number)


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


class StepRecord:
    """Collects one step. Gradients are what counts: a forward call may be repeated, or come to nothing."""

    def __init__(
        self, step: int, metadata: Metadata, first_call: int, owners: Owners, before: StepRecord | None = None
    ) -> None:
        """`before`: the step that ran before it, whatever came of it."""
        self.step = step
        self.metadata = metadata
        self.first_call = first_call
        """Calls with a lower number were made in an earlier step."""
        self.since = first_call
        """Calls with a lower number belong to an earlier step."""
        self.settled = False
        """Set once its slots are made; gradients that arrive later belong to no slot."""
        self.updated: set[int] = set()
        """Numbers of the optimizers that have made an update of it."""
        self.missed: set[int] = set()
        """Numbers of the optimizers to whose parameters a gradient came once slots were made."""
        self.raw: set[str] = set()
        """Layers whose input asks for no gradient: raw data, which repeats."""
        self.reached: dict[str, str] = {}
        """Layer -> what became of its forward calls, where no gradient came."""
        self.misfits: dict[str, str] = {}
        """Layer -> why a call of it is no row of the layer that was recorded."""
        self.unseen: dict[str, str] = {}
        """Layer -> why a call of it could not be recorded at all."""
        self.random_states: Mapping[str, bytes] = {}
        """By device, the state of its random number generator at the beginning; empty where nobody asked."""
        self._before = None if before is None else weakref.ref(before)
        self._owners = owners
        self.followed: KnownRows | None = None
        self.rows: dict[int, Known] = {}
        """By number of the call, what is known of the rows that its key holds."""
        self._order = CallOrder()
        self._moments: dict[int, Moment | None] = {}
        """By number of the call, when it was made; None where nothing tells."""
        self._passes = Passes(owners)
        self._copies: dict[tuple[int, int], int] = {}
        """Numbers of the weights' copies that gradients went through: by graph task, and the copy's own number."""
        self._arrived = 0
        """How many error signals came."""

    @property
    def _signals(self) -> dict[str, dict[int, Signal]]:
        return self._passes.whole.signals

    @property
    def fresh(self) -> dict[int, bool]:
        """By optimizer, whether no gradient of an earlier step was there when the first of this one's arrived."""
        return self._passes.whole.fresh

    @property
    def passes(self) -> Sequence[Pass]:
        """The backward passes that ran, in their order, of which the gradients of the first ones may be gone."""
        return self._passes.apart

    def goes_on(self, earlier: StepRecord) -> None:
        """Gradients of the forward calls of the step before it which arrive now belong to this one.

        Raises RecordingError for another step than that: the metadata said of this one would name the wrong samples.
        """
        if self._before is None or self._before() is not earlier:
            raise RecordingError(
                f"Step {self.step} continues step {earlier.step}, which is not the one before it.",
                hint="If several steps share a forward pass, let each continue the previous one.",
            )
        self.since, self.rows = earlier.since, dict(earlier.rows)
        self.raw |= earlier.raw
        self._order, self._moments = earlier._order, dict(earlier._moments)

    def keep(self, first: int) -> None:
        """Leave out the passes before the `first` one."""
        for layer in self._passes.keep(first):
            self.reached[layer] = "its gradients were cleared before an update used them"

    @property
    def empty(self) -> bool:
        return not self._signals

    @property
    def layers(self) -> list[str]:
        """The layers that gradients reached."""
        return list(self._signals)

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        return {name: next(iter(signals.values())).dtype for name, signals in self._signals.items()}

    def leading(self) -> list[tuple[str, list[tuple[int, ...]]]]:
        """Each layer that gradients reached, with the leading dimensions of its calls."""
        return [(name, [signal.leading for signal in self.calls(name)]) for name in self._signals]

    def known_rows(self) -> list[Known | None]:
        """What is known of the rows of each call, in the order of `leading`."""
        return [signal.rows for name in self._signals for signal in self.calls(name)]

    def called(self, tap: Tap, raw: bool, number: int | None = None) -> None:
        """`number`: what the call will be known by, where its place among the others is known by now."""
        if number is not None:
            self._moments[number] = self._order.now()
        self.reached[tap.name] = "its output reached no loss in a recorded step"
        if raw:
            self.raw.add(tap.name)

    def called_without_gradient(self, tap: Tap, why: str) -> None:
        self._order.without_gradient()
        self.reached.setdefault(tap.name, f"{why} in every recorded step")

    def called_unseen(self, tap: Tap) -> None:
        self.unseen[tap.name] = self.reached[tap.name] = (
            f"it was called under a torch.func transform at step {self.step}"
        )

    def received(self, tap: Tap, call: int, key: Tensor, error: Tensor, cast: int | None) -> None:
        now = self._passes.now(tap) if key.numel() else None
        if now is None:
            return
        if self.settled:
            self.missed |= self._owners.among(tap.trained).keys()
            return
        form, outputs = tap.key_form, error.shape[-1] if tap.values else tap.d_out
        if (form.width(key), outputs) != (tap.d_in, tap.d_out):
            self.misfits[tap.name] = (
                f"took {form.described(key)} to {outputs} at step {self.step}, where it took {tap.d_in} to {tap.d_out}"
            )
            return
        self._arrived += 1
        dtype = key.dtype if key.is_floating_point() else error.dtype
        product = None if cast is None else self._product(dtype, cast)
        signal = Signal(
            form.owned(key), self._kept(tap, error), form.leading(key), dtype, form, product, self.rows.get(call)
        )
        now.add(tap.name, call, signal)

    def _product(self, dtype: torch.dtype, cast: int) -> Product:
        """Of a call whose error signal came now."""
        copy = self._copies.setdefault((torch._C._current_graph_task_id(), cast), len(self._copies))
        return Product(HALVED[dtype], copy, self._arrived)

    def calls(self, layer: str) -> list[Signal]:
        """The calls of a layer whose gradient arrived, in forward order; in that of their second runs if checkpoints
        leave it in doubt.
        """
        signals = self._signals.get(layer, {})
        if len(signals) == 1:
            return list(signals.values())
        moments = {number: self._moments.get(number) or () for number in signals}
        again = any(len(moment) != 1 for moment in moments.values()) and all(moments.values())
        return [signals[number] for number in sorted(signals, key=lambda n: (moments[n] if again else (), n))]

    @property
    def disordered(self) -> list[str]:
        """Layers of which several calls ran again in checkpoints, and nothing tells in which order they were made."""
        return [
            layer
            for layer, signals in self._signals.items()
            if len(signals) > 1 and any(self._moments.get(number, ()) is None for number in signals)
        ]

    def _kept(self, tap: Tap, error: Tensor) -> Tensor | None:
        """Where values are not wanted, only what holds NaN or infinity is kept."""
        return owned_rows(error, error.shape[-1]) if tap.values or not surely_finite(error) else None


_ARRIVALS = 1 << 32
"""Numbers that calls of one backward pass of compiled code are counted down from: more than there are."""


class Collector:
    """Who the taps of a training report to: it hands everything to the step that runs, or to the query set."""

    def __init__(
        self,
        owners: Owners,
        late: Callable[[Tap], None],
        refused: Callable[[Tap, RecordingError], None],
        failed: Callable[[Exception, str], None],
    ) -> None:
        """`late` is told of a gradient that came outside its step, `refused` of a call in a step without keys, and
        `failed` of what the recorder itself raised in a hook, and of which layer.
        """
        self.step: StepRecord | None = None
        """The step that runs."""
        self.query_set: QuerySetTaker | None = None
        """The query set that is being taken."""
        self._before: weakref.ref[StepRecord] | None = None
        """The step that began last: what it collected is not kept alive for it."""
        self._owners, self._late, self._refused, self._failed = owners, late, refused, failed
        self._calls = 0
        self.followed: KnownRows | None = None
        self._told_unseen = False
        self._pass, self._arrivals = -1, 0
        self.began = torch.zeros((), dtype=torch.int64, device="cpu")

    def begin(self, step: int, metadata: Metadata) -> StepRecord:
        """Collect another step from now on."""
        self.began = torch.tensor(
            self._calls, device="cpu"
        )  # another tensor: that of an earlier step may be waited for
        before = None if self._before is None else self._before()
        self.step = StepRecord(step, metadata, self._calls, self._owners, before)
        self._before = weakref.ref(self.step)
        step_begins(self)
        if self.followed is not None:
            self.followed.begin()
            self.step.followed = self.followed
        return self.step

    def forward_mode(self) -> str | None:
        if self.query_set is not None:
            return "query_set"
        return None if self.step is None else "step"

    def probed(self, tap: Tap, key: Tensor, rows: Known | None = None) -> None:
        if self.query_set is not None:
            self.query_set.probed(tap, key, rows)

    def called(self, tap: Tap, raw: bool, rows: Known | None = None) -> int:
        if self.step is not None:
            self.step.called(tap, raw, self._calls)
            if rows is not None:
                self.step.rows[self._calls] = rows
        self._calls += 1
        return self._calls - 1

    def arrived(self, tap: Tap, raw: bool, began: int) -> int:
        if self.step is None or began < self.step.since:
            return -1
        backward = torch._C._current_graph_task_id()
        if backward != self._pass:
            self._calls += _ARRIVALS
            self._pass, self._arrivals = backward, self._calls
        self.step.called(tap, raw)
        self._arrivals -= 1
        return self._arrivals

    def called_without_gradient(self, tap: Tap, why: str) -> None:
        if self.step is not None:
            self.step.called_without_gradient(tap, why)

    def unseen(self, tap: Tap) -> None:
        if self.step is None:
            return
        self.step.called_unseen(tap)
        if not self._told_unseen:
            self._told_unseen = True
            warnings.warn(
                f"layer {tap.name!r}: {self.step.unseen[tap.name]}. The gradients of such calls are not "
                "recorded, and the status of layers trained by them says so. Use loss.backward() to record them.",
                RuntimeWarning,
                stacklevel=2,
            )

    def refused(self, tap: Tap, error: RecordingError) -> None:
        if self.query_set is not None:
            raise error
        self._refused(tap, error)

    def failed(self, error: Exception, layer: str = "") -> None:
        if self.query_set is not None:
            raise error
        self._failed(error, layer)

    def received(self, tap: Tap, call: int, key: Tensor, error: Tensor, cast: int | None) -> None:
        if self.step is not None and call >= self.step.since:
            self.step.received(tap, call, key, error, cast)
        else:
            self._late(tap)
