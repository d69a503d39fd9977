"""Layers that only the first forward pass shows: matrices that modules multiply by themselves, and those of
`dualform.tap`.

    self.w = nn.Parameter(…); x @ self.w                                    layer `<module>.w`
    self.up = nn.Parameter(torch.empty(E, I, H)); F.linear(x, self.up[e])   layers `<module>.up[0]` to `[E - 1]`

A module that holds such a matrix and has no kind of its own is watched in the first step. A parameter that is seen in
no product with a matrix is no layer, and is named with the reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from dualform.errors import RecordingError
from dualform.patterns import matches
from dualform.record.discovery.followed_rows import FollowedRows
from dualform.record.discovery.layers import FrozenLayers
from dualform.record.discovery.matrices import FreeTaps, MatrixUses, routed_spaces
from dualform.record.layout import why_not_numbers
from dualform.record.ranks import is_sharded
from dualform.record.setup.optimizers import Owners
from dualform.record.setup.plan import Plan
from dualform.record.setup.summary import listed
from dualform.record.slots.spaces import DEFAULTS
from dualform.record.slots.step_record import StepRecord
from dualform.record.taps import Tap
from dualform.record.taps.autograd import hand_over, runs_again
from dualform.record.taps.matrix import LISTENING, FreeTap, MatrixWatcher
from dualform.record.taps.tap import Listener, ModuleTap
from dualform.record.taps.watcher import MatrixBlock, MatrixProduct, ProductHider
from dualform.store.layer import Layer

PENDING = "the first step will show what it is multiplied with"
_SHARDED = "it is sharded over processes, and products with what is put together of it are not seen"


class FoundLayers:
    """Watches the free matrices of one model until the first step has shown which of them are layers."""

    def __init__(
        self,
        model: nn.Module,
        owners: Owners,
        layers: str | Sequence[str] | None = None,
        values: bool = True,
        given: Sequence[Tap] = (),
    ) -> None:
        """As `Recorder` is told; `given`: taps of layers that are no modules."""
        self._model, self._owners = model, owners
        self.frozen = FrozenLayers(owners)
        """What does not train yet, of these layers and of all others."""
        self._patterns = None if layers is None else [layers] if isinstance(layers, str) else list(layers)
        self._taps = FreeTaps(model, owners, self.frozen, self._wanted, values)
        self.skipped = self._taps.skipped
        """By parameter, why it is no layer."""
        self.modules: set[str] = set()
        """Those whose parameters are all spoken of here."""
        self.watchers: list[MatrixWatcher] = []
        self.closed = False
        self._listener: Listener | None = None
        self._uses = MatrixUses()
        self.unseen: list[str] = []
        """Parameters that the first step did not touch; it has shown no layer of them."""
        self._hiders: list[ProductHider] = []
        self._followed = FollowedRows(model)
        self._said: tuple[dict[str, str], list[str]] = {}, []
        self._recalled_spaces: dict[str, str] = {}
        """Of layers of a training that is resumed, whose rows the model chooses."""
        self._told: set[tuple[str, str]] = set()
        held = {id(tensor) for tap in given for tensor in tap.parameters.values()}
        for name, module in model.named_modules():
            self._watch(name, module, held)

    def _watch(self, name: str, module: nn.Module, held: set[int]) -> None:
        if ModuleTap.kind_of(module) is not None or type(module).__module__.startswith("torch.nn."):
            return
        if isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
            return
        own = {path: tensor for path, tensor in _parameters_of(name, module, self.modules) if id(tensor) not in held}
        free = {path: tensor for path, tensor in own.items() if tensor.dim() > 1}
        if not free:
            return
        self.modules.add(name)
        for path, tensor in own.items():
            if why := self._owners.untrained([tensor], "it"):
                self.frozen.add(path, [tensor], why)
            self.skipped[path] = why or (_why_unseen(tensor) if path in free else "it is not a matrix")
        free = {path: tensor for path, tensor in free.items() if self.skipped[path] == PENDING}
        if free:
            self.watchers.append(MatrixWatcher(module, free, own, self))

    def recall(self, layers: Sequence[Layer]) -> Sequence[FreeTap]:
        """The layers of a training that is resumed which only a first step shows: their names and spaces stay, whether
        the first step of the further run shows them or not. `layers`: all that a memory has and no other tap is of.
        """
        trained = {name: own for name, own in self._model.named_parameters() if not self._owners.untrained([own], "")}
        for layer in layers:
            tap = self._taps.recall(layer, trained, self.names) if self._wanted(layer.name) else None
            if tap is None or tap not in self._taps.shown.values():
                continue
            if tap.block.leading > 1 and layer.space not in DEFAULTS:
                self._recalled_spaces[layer.name] = layer.space
        return list(self._taps.recalled.values())

    def _wanted(self, name: str) -> bool:
        return self._patterns is None or any(matches(name, pattern) for pattern in self._patterns)

    def may_be(self, pattern: str) -> bool:
        """Whether a name or pattern may be that of a layer which the first step will show."""
        return any(
            matches(name + end, pattern) or pattern.startswith((f"{name}[", f"{name}."))
            for name in self.names
            for end in ("", "[0]")
        )

    def told(self, spaces: Mapping[str, str], routed: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        """Spaces and routed layers, as `Recorder` is told of them, without those that the first step is to show."""
        self._recalled_spaces = {
            layer: space
            for layer, space in self._recalled_spaces.items()
            if not any(matches(layer, pattern) for pattern in (*spaces, *routed))
        }
        self._said = dict(spaces), list(routed)
        there = {pattern: space for pattern, space in spaces.items() if not self.may_be(pattern)}
        apart = [pattern for pattern in routed if not self.may_be(pattern)]
        return {**there, **self._recalled_spaces}, [*apart, *self._recalled_spaces]

    @property
    def names(self) -> list[str]:
        """Of parameters that may be layers."""
        return [path for watcher in self.watchers for path in watcher.free]

    def attach(self, listener: Listener, taps: Sequence[Tap], compiled: bool = False) -> None:
        """`taps`: all others, of which one may hold a watched parameter, too; `compiled`: whether parts of the model
        are.
        """
        self._listener = listener
        self._taps.taken = {tap.name for tap in taps} | self._taps.recalled.keys()
        LISTENING.append(self)
        for watcher in self.watchers:
            watcher.attach(listener)
        if not compiled:  # compiled code would be traced with what looks at its functions
            listener.followed = self._followed
            self._followed.attach(listener)
        free = {id(tensor) for watcher in self.watchers for tensor in watcher.free.values()}
        for tap in taps:
            if isinstance(tap, ModuleTap) and not free.isdisjoint(map(id, tap.parameters.values())):
                self._hiders.append(ProductHider(tap.module, listener))

    def detach(self) -> None:
        self._listener = None
        if self in LISTENING:
            LISTENING.remove(self)
        for watcher in self.watchers:
            watcher.detach()
        for hider in self._hiders:
            hider.detach()
        self._hiders = []
        self._followed.detach()

    def tap_of(
        self, path: str, parameter: Tensor, block: MatrixBlock, product: MatrixProduct, own: Mapping[str, Tensor]
    ) -> FreeTap | None:
        place, mode = (path, block, product.looks_up), None if self._listener is None else self._listener.forward_mode()
        if place not in self._taps.shown and not self.closed and mode is not None:
            self._taps.show(path, parameter, block, product, own)
        if place not in self._taps.shown and mode == "step":
            self._taps.shown[place] = None
            self._tell_late(path)
        return self._taps.shown.get(place)

    def used(self, path: str, function: str) -> None:
        if not self.closed:
            self._uses.add(path, function)

    def by_hand(self, product: MatrixProduct, name: str, output: Tensor) -> Tensor:
        """What the network goes on with, of a product that `dualform.tap` was told of by this name."""
        listener = self._listener
        if listener is None or (listener.forward_mode() is None and not runs_again()):
            return output
        try:
            tap = self._tap_by_hand(listener, product, name)
            return output if tap is None else tap.multiplied(listener, product, output)
        except Exception as error:
            hand_over(listener, error, name)
            return output

    def _tap_by_hand(self, listener: Listener, product: MatrixProduct, name: str) -> FreeTap | None:
        if name not in self._taps.told and not self.closed and listener.forward_mode() is not None:
            if name in self._taps.taken:
                self._warn(name, "was recorded by hand under the name of another layer")
                self._taps.told[name] = None
            else:
                self._taps.tell(name, product.weight)
        if name not in self._taps.told and listener.forward_mode() == "step":
            self._taps.told[name] = None
            self._warn(name, "was first recorded by hand after the first step")
        tap = self._taps.told.get(name)
        if tap is not None and not tap.stands_for(product.weight):
            self._warn(name, "was recorded by hand with another matrix than at first")
            return None
        return tap

    def _tell_late(self, path: str) -> None:
        """A parameter was multiplied in a way that is no layer."""
        if path not in self.unseen:
            self._warn(path, "was multiplied in a way that the first step did not show")
            return
        self.unseen.remove(path)
        self.skipped[path] = "it was first multiplied after the first step"
        self._warn(
            path,
            "was multiplied for the first time after the first step, which must run every part that you want to record",
        )

    def _warn(self, name: str, what: str) -> None:
        if (name, what) not in self._told:
            self._told.add((name, what))
            warnings.warn(f"{name} {what}: those products are not recorded.", RuntimeWarning, stacklevel=2)

    def joined(self, plan: Plan, record: StepRecord) -> Plan:
        """The plan with the layers that the first step has shown, by what was received in it; the same without any."""
        spaces, routed = self._said
        layers = self._close(plan.taps)
        chosen = self._routed_spaces(record, (*spaces, *routed, *self._taps.recalled))
        chosen |= self._recalled_spaces
        spaces, routed = {**spaces, **chosen}, [*routed, *chosen]
        if not layers and (plan.spaces, plan.routed) == (spaces, routed):
            return plan
        return replace(plan, taps=[*plan.taps, *layers], spaces=spaces, routed=routed)

    def check_trained(self, taps: Sequence[Tap]) -> None:
        """`taps`: of other layers. Raises RecordingError where none but parameters train that are seen to be no layers,
        as the vectors of IA3.
        """
        free = {path: tensor for watcher in self.watchers for path, tensor in watcher.free.items()}
        shown = (*self._taps.shown.values(), *self._taps.told.values())
        if taps or any(tap is not None for tap in shown) or any(path not in self._uses for path in free):
            return
        if any(tensor.grad is not None for tensor in free.values()):
            self.skipped |= self.reasons
            by_reason = dict[str, list[str]]()
            for path, why in self.skipped.items():
                by_reason.setdefault(why, []).append(path or "the model itself")
            raise RecordingError(
                "Nothing to record in the first step: "
                + "; ".join(f"{listed(names)}: {why}" for why, names in by_reason.items())
                + ".",
                hint="Train the weight of at least one layer: vectors that scale or shift have no slots.",
            )

    @property
    def reasons(self) -> dict[str, str]:
        """By parameter that may be a layer, why it is none so far."""
        return {path: self._uses.why_no_layer(path) for path in self.names if self.skipped.get(path) == PENDING}

    def _close(self, others: Sequence[Tap]) -> list[FreeTap]:
        """What the first step has shown to be layers; `others`: all other taps.

        Modules of which no matrix is a layer are watched no longer, unless one was not touched yet.
        """
        self.closed = True
        layers = self._taps.layers(others)
        for path, why in self.skipped.items():
            if why == PENDING:
                self.skipped[path] = self._uses.why_no_layer(path)
                self.unseen += [path] if path not in self._uses and self._wanted(path) else []
        every_layer = [*layers, *self._taps.recalled.values()]
        kept = {id(tensor) for tap in every_layer for tensor in tap.parameters.values()}
        for watcher in self.watchers:
            if kept.isdisjoint(map(id, watcher.free.values())) and watcher.free.keys().isdisjoint(self.unseen):
                watcher.detach()
        return layers

    def _routed_spaces(self, record: StepRecord, said: Sequence[str]) -> dict[str, str]:
        """Layer -> space, of the layers of stacks whose rows the model chooses, by what was received in the first step.

        `said`: names and patterns of layers that were spoken of, which stay as they were said to be.
        """
        found = routed_spaces(self._taps.stacks, record)
        return {layer: space for layer, space in found.items() if not any(matches(layer, own) for own in said)}


def _parameters_of(name: str, module: nn.Module, lists: set[str]) -> Iterator[tuple[str, Tensor]]:
    """Those that a module holds by itself or in lists, by name; `lists` gets the names of the lists."""
    for own, tensor in module.named_parameters(name, recurse=False):
        yield own, tensor
    for own, child in module.named_children():
        if isinstance(child, nn.ParameterList | nn.ParameterDict):
            path = f"{name}.{own}" if name else own
            lists.add(path)
            yield from _parameters_of(path, child, lists)


def _why_unseen(tensor: Tensor) -> str:
    return _SHARDED if is_sharded(tensor) else why_not_numbers([("type", tensor)]) or PENDING
