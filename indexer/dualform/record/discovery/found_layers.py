"""Layers that only the first forward pass shows: matrices that modules multiply by themselves, and those of
`dualform.tap`.

    self.w = nn.Parameter(…); x @ self.w                                    layer `<module>.w`
    self.up = nn.Parameter(torch.empty(E, I, H)); F.linear(x, self.up[e])   layers `<module>.up[0]` to `[E - 1]`

A module that holds such a matrix and has no kind of its own is watched in the first step. A parameter that is seen in
no product with a matrix is no layer, and is named with the reason.

A layer of a stack sees rows of the batch, or its tokens, where each call is as large as those of other layers; where
calls have other sizes, or some rows of a tensor were seen to be taken, the model chose them. Then one member's matrices
share a space of that member's name.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product as every_pair
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from dualform.errors import RecordingError
from dualform.patterns import matches
from dualform.record.discovery.followed_rows import FollowedRows
from dualform.record.discovery.layers import FrozenLayers, batch_dim_of
from dualform.record.discovery.row_rules import tensors_in
from dualform.record.layout import why_not_numbers
from dualform.record.lineage import Lineage
from dualform.record.ranks import is_sharded
from dualform.record.setup.optimizers import Owners
from dualform.record.setup.plan import Plan, check_blocks
from dualform.record.setup.summary import listed
from dualform.record.slots.spaces import DEFAULTS, own_name
from dualform.record.slots.step_record import StepRecord
from dualform.record.taps import Tap
from dualform.record.taps.autograd import hand_over, runs_again
from dualform.record.taps.matrix import BY_HAND, LOOKED_UP, FreeTap, tap_of_memory
from dualform.record.taps.tap import Listener, ModuleTap
from dualform.record.taps.watcher import MatrixBlock, MatrixProduct, ProductHider, Watcher, block_of, is_of
from dualform.store.layer import Layer, Parameter

PENDING = "the first step will show what it is multiplied with"
_SHARDED = "it is sharded over processes, and products with what is put together of it are not seen"
_ONE_KERNEL = (
    "one kernel computes all its products, which hides them: compute them one by one, as transformers does "
    "with experts_implementation='eager'"
)
_TELL_NOTHING = frozenset(
    ("__get__", "__getitem__", "size", "dim", "numel", "view", "transpose", "permute", "detach", "is_inference")
) | {"storage_offset", "stride", "untyped_storage"}
_COPIES = frozenset(("reshape", "contiguous", "clone", "to", "float", "double", "type"))


Place: TypeAlias = tuple[str, MatrixBlock, bool]
"""Name of a layer's parameter, block of it, and whether rows are looked up."""


class MatrixWatcher(Watcher):
    """A module that holds matrices which may be layers."""

    def __init__(
        self, module: nn.Module, free: Mapping[str, Tensor], own: Mapping[str, Tensor], found: FoundLayers
    ) -> None:
        """`free`: by name in the state dict, the parameters that may be layers; `own`: all that the module holds."""
        super().__init__(module)
        self.free, self._own, self._found = free, own, found

    def multiplied(self, listener: Listener, product: MatrixProduct, output: Tensor) -> Tensor | None:
        path = next((path for path, parameter in self.free.items() if is_of(product.weight, parameter)), None)
        if path is None:
            return None
        block = block_of(product.weight, self.free[path])
        if block is None:
            self._found.used(path, "a product with a part of it that is not a matrix of its rows and columns")
        elif any(is_of(product.key, other) for other in self._own.values()):
            self._found.used(path, "a product with another parameter")
        else:
            tap = self._found.tap_of((path, block, product.looks_up), product, self._own)
            return output if tap is None else tap.multiplied(listener, product, output)
        return None

    def used(self, name: str, args: tuple[Any, ...], output: Any) -> None:
        for tensor in () if self._found.closed else tensors_in(args):
            for path, parameter in self.free.items():
                if is_of(tensor, parameter):
                    self._found.used(path, name)


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
        self._model, self._owners, self._values = model, owners, values
        self._modules = dict(model.named_modules())
        self.frozen = FrozenLayers(owners)
        """What does not train yet, of these layers and of all others."""
        self._patterns = None if layers is None else [layers] if isinstance(layers, str) else list(layers)
        self.skipped: dict[str, str] = {}
        """By parameter, why it is no layer."""
        self.modules: set[str] = set()
        """Those whose parameters are all spoken of here."""
        self.watchers: list[MatrixWatcher] = []
        self.closed = False
        """Whether the first step is over, which shows what is a layer."""
        self.unseen: list[str] = []
        """Parameters that the first step did not touch; it has shown no layer of them."""
        self._taps: dict[Place | str, FreeTap | None] = {}
        """By what was multiplied with, or by the name that `dualform.tap` was told; None for what is no layer."""
        self._names: set[str] = set()
        """Of layers, those of other taps among them."""
        self._uses: dict[str, set[str]] = {}
        """By parameter, the functions of torch that it was given to."""
        self._recalled: dict[str, FreeTap] = {}
        """Layers of a training that is resumed, by name."""
        self._recalled_spaces: dict[str, str] = {}
        """Of those whose rows the model chooses."""
        self._listener: Listener | None = None
        self._hiders: list[ProductHider] = []
        self._followed = FollowedRows(model)
        self._said: tuple[dict[str, str], list[str]] = {}, []
        self._warned: set[tuple[str, str]] = set()
        held = {id(tensor) for tap in given for tensor in tap.parameters.values()}
        for name, module in self._modules.items():
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
            tap = tap_of_memory(layer, trained, self._values) if self._wanted(layer.name) else None
            if tap is None:
                continue
            (path, *_) = (place.name for place in tap.parameters)
            tap.batch_dim = batch_dim_of(self._modules, path)
            self._recalled[layer.name] = self._taps[layer.name] = tap
            for place in tap.parameters:
                self.skipped.pop(place.name, None)
            (plain,) = (name for name, own in blocks_of(path, trained[path], tap.block).items() if own == tap.block)
            if path in self.names and (layer.name == plain or layer.name.startswith(f"{plain}.")):
                self._taps[path, tap.block, layer.source == LOOKED_UP] = tap  # else its name was told by hand
                if tap.block.leading > 1 and layer.space not in DEFAULTS:
                    self._recalled_spaces[layer.name] = layer.space
        return list(self._recalled.values())

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
        self._names = {tap.name for tap in taps} | self._recalled.keys()
        BY_HAND.append(self.by_hand)
        for watcher in self.watchers:
            watcher.attach(listener)
        if not compiled:  # compiled code would be traced with what looks at its functions
            listener.followed = self._followed
            self._followed.attach(listener)
        free = {id(tensor) for watcher in self.watchers for tensor in watcher.free.values()}
        for tap in taps:
            if isinstance(tap, ModuleTap) and not free.isdisjoint(map(id, tap.parameters.values())):
                self._hiders.append(ProductHider(tap.module))
                self._hiders[-1].attach(listener)

    def detach(self) -> None:
        self._listener = None
        if self.by_hand in BY_HAND:
            BY_HAND.remove(self.by_hand)
        for watcher in self.watchers:
            watcher.detach()
        for hider in self._hiders:
            hider.detach()
        self._hiders = []
        self._followed.detach()

    def tap_of(self, place: Place, product: MatrixProduct, own: Mapping[str, Tensor]) -> FreeTap | None:
        """The tap of a block that a product was seen with; None where it is no layer. `own`: its module's parameters,
        of which one may be the product's bias.
        """
        mode = None if self._listener is None else self._listener.forward_mode()
        if place not in self._taps and not self.closed and mode is not None:
            self._show(place, product, own)
        if place not in self._taps and mode == "step":
            self._taps[place] = None
            self._warn_late(place[0])
        return self._taps.get(place)

    def _show(self, place: Place, product: MatrixProduct, own: Mapping[str, Tensor]) -> None:
        """A product was seen with a block that has no tap."""
        path, block, looks_up = place
        stack = blocks_of(path, own[path], block)
        for plain, each in stack.items():
            name = next(own for own in (plain, *(f"{plain}.{n}" for n in range(2, 99))) if own not in self._names)
            self._names.add(name)
            tap = FreeTap(name, path, own[path], each, looks_up, self._values)
            tap.batch_dim = batch_dim_of(self._modules, path)
            self._taps[path, each, looks_up] = tap
            if product.bias is not None and len(stack) == 1:
                tap.add_bias(product.bias, own)

    def used(self, path: str, function: str) -> None:
        """A parameter went into something that is no product with a matrix."""
        if not self.closed and function not in _TELL_NOTHING:
            self._uses.setdefault(path, set()).add(function)

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
        mode = listener.forward_mode()
        if name not in self._taps and not self.closed and mode is not None:
            if name in self._names:
                self._warn(name, "was recorded by hand under the name of another layer")
                self._taps[name] = None
            else:
                self._names.add(name)
                self._taps[name] = self._named(name, product.weight)
        if name not in self._taps and mode == "step":
            self._taps[name] = None
            self._warn(name, "was first recorded by hand after the first step")
        tap = self._taps.get(name)
        if tap is not None and not tap.stands_for(product.weight):
            self._warn(name, "was recorded by hand with another matrix than at first")
            return None
        return tap

    def _named(self, name: str, weight: Tensor) -> FreeTap | None:
        """The tap of a layer that was named by hand; None where its matrix is no block of a parameter that trains."""
        path, parameter = next(
            ((path, own) for path, own in self._model.named_parameters() if is_of(weight, own)), ("", weight)
        )
        if not path:
            self.skipped[name] = "its matrix is neither a parameter of the model nor a view of one"
            return None
        block, why = block_of(weight, parameter), self._owners.untrained([parameter], "its matrix")
        if why:
            self.frozen.add(name, [parameter], why)
        if why := why or why_not_numbers([("type", parameter)]):
            self.skipped[name] = why
        elif block is None:
            self.skipped[name] = f"its matrix is not a block of {path}"
        return None if why or block is None else FreeTap(name, path, parameter, block, False, self._values)

    def _warn_late(self, path: str) -> None:
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
        if (name, what) not in self._warned:
            self._warned.add((name, what))
            warnings.warn(f"{name} {what}: those products are not recorded.", RuntimeWarning, stacklevel=2)

    def joined(self, plan: Plan, record: StepRecord) -> Plan:
        """The plan with the layers that the first step has shown, by what was received in it; the same without any."""
        spaces, routed = self._said
        layers = self._close(plan.taps)
        said = (*spaces, *routed, *self._recalled)
        chosen = routed_spaces(self._stacks(), record)
        chosen = {layer: space for layer, space in chosen.items() if not any(matches(layer, own) for own in said)}
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
        shown = any(tap is not None for tap in self._taps.values())
        if taps or shown or any(path not in self._uses for path in free):
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
        pending = [path for path in self.names if self.skipped.get(path) == PENDING]
        return {path: _why_no_layer(self._uses.get(path, set())) for path in pending}

    def _close(self, others: Sequence[Tap]) -> list[FreeTap]:
        """What the first step has shown to be layers; `others`: all other taps.

        Modules of which no matrix is a layer are watched no longer, unless one was not touched yet.
        """
        self.closed = True
        layers = self._layers(others)
        for path, why in self.skipped.items():
            if why == PENDING:
                self.skipped[path] = _why_no_layer(self._uses.get(path, set()))
                self.unseen += [path] if path not in self._uses and self._wanted(path) else []
        kept = {id(tensor) for tap in (*layers, *self._recalled.values()) for tensor in tap.parameters.values()}
        for watcher in self.watchers:
            if kept.isdisjoint(map(id, watcher.free.values())) and watcher.free.keys().isdisjoint(self.unseen):
                watcher.detach()
        return layers

    def _layers(self, others: Sequence[Tap]) -> list[FreeTap]:
        """Those that were not recalled. What is no layer has no tap from now on."""
        by_parameter: dict[str, list[FreeTap]] = {}
        for _, own in sorted(self._taps.items(), key=lambda item: isinstance(item[0], str)):
            if own is not None:
                by_parameter.setdefault(next(iter(own.parameters)).name, []).append(own)
        layers: list[FreeTap] = []
        for path, every in by_parameter.items():
            found = [tap for tap in every if tap.name not in self._recalled]
            try:
                check_blocks(self._model, [*others, *layers, *found])
            except RecordingError as error:
                self._drop(path, found, error.message.rstrip("."))
                continue
            for name in {place.name for tap in found for place in tap.parameters}:
                self.skipped.pop(name, None)
            for tap in found:
                if self._wanted(tap.name):
                    layers.append(tap)
                else:
                    self._drop(tap.name, [tap], "layers= leaves it out")
        return layers

    def _drop(self, name: str, taps: Sequence[FreeTap], why: str) -> None:
        self.skipped[name] = why
        self._taps = {place: None if tap in taps else tap for place, tap in self._taps.items()}

    def _stacks(self) -> dict[str, list[str]]:
        """By parameter, the layers of those that hold several matrices."""
        found: dict[str, list[str]] = {}
        for place, tap in self._taps.items():
            if not isinstance(place, str) and tap is not None and place[1].leading > 1 and tap.name != place[0]:
                found.setdefault(place[0], []).append(tap.name)
        return found


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


def _why_no_layer(functions: set[str]) -> str:
    """Of a parameter that was given to these functions, and was in no product with a matrix."""
    if {"grouped_mm", "_grouped_mm"} & functions:
        return _ONE_KERNEL
    if functions and functions <= _COPIES:
        return f"{', '.join(sorted(functions))} may copy it, and products with a copy are not seen"
    if "add" in functions:
        return "it is added, not multiplied"
    if functions:
        into = ", ".join(sorted(functions - _COPIES))
        return f"it goes into {into}, not into a matrix product that the recorder can see"
    return "no product with it was seen in the first step; products in compiled code are never seen"


def blocks_of(path: str, parameter: Tensor, block: MatrixBlock) -> dict[str, MatrixBlock]:
    """By layer, the block; of a stack of matrices, of which a product was seen with one, those of all."""
    height = parameter.shape[-2]
    one = parameter.dim() > 2 and block.leading == parameter.dim() - 1 and block.columns == (0, parameter.shape[-1])
    if one and block.rows[0] % height == 0 and block.rows[1] - block.rows[0] == height:
        numbers = every_pair(*map(range, parameter.shape[:-2]))
        return {
            f"{path}[{', '.join(map(str, own))}]": replace(block, rows=(number * height, (number + 1) * height))
            for number, own in enumerate(numbers)
        }
    place = Parameter(path, 0, 0, block.rows, block.transposed, block.columns, block.leading)
    return {place.within(parameter.shape).block_name: block}


def routed_spaces(stacks: Mapping[str, Sequence[str]], record: StepRecord) -> dict[str, str]:
    """Layer -> space, of the stacks whose rows the model chooses, by what was received in a first step.

    `stacks`: by parameter, its layers in order.
    """
    calls = dict(record.leading())
    members = {layer for layers in stacks.values() for layer in layers}
    known = {size for layer, sizes in calls.items() if layer not in members for size in sizes}
    if record.metadata.rows is not None:
        known.add((record.metadata.rows,))
    chosen = {
        parameter: layers
        for parameter, layers in stacks.items()
        if any(isinstance(own := signal.rows, Lineage) and not own.steady for x in layers for signal in record.calls(x))
        or (known and not known.issuperset(size for layer in layers for size in calls.get(layer, ())))
    }
    found: dict[str, str] = {}
    for parameter, layers in chosen.items():
        module = parameter.rpartition(".")[0] or parameter
        beside = [other for other in chosen if (other.rpartition(".")[0] or other) == module]
        alike = all([calls.get(layer) for layer in chosen[other]] == [calls.get(x) for x in layers] for other in beside)
        for number, layer in enumerate(layers):
            found[layer] = own_name(f"{module}_{number}" if alike else layer, set())
    return found
