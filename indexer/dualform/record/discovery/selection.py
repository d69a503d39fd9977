"""Which layers of a model are recorded, and why the others are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dualform.errors import NotFound, RecordingError
from dualform.patterns import matches
from dualform.record.discovery.found_layers import FoundLayers
from dualform.record.discovery.layers import batch_dim_of
from dualform.record.layout import why_not_numbers
from dualform.record.setup.optimizers import Owners
from dualform.record.taps import ModuleTap, Tap
from dualform.record.taps.autograd import COMPILES


def select(
    model: nn.Module,
    owners: Owners,
    layers: str | Sequence[str] | None,
    values: bool,
    given: Sequence[Tap],
    found: FoundLayers,
) -> tuple[list[Tap], dict[str, str]]:
    """Taps in the model's order, and name -> reason for every other layer that holds parameters.

    `layers` are names or patterns (fnmatch), None for all; `values`: error signals are wanted; `given`: taps of layers
    that are no modules, and those that stand in place of the kind that would tap the module of their name; `found`:
    knows the layers that the first step shows, and is told what does not train yet. Raises NotFound for a pattern that
    matches no layer, RecordingError for a model that runs as copies or is not materialised, or where nothing is left to
    record.
    """
    _refuse_copies(model)
    _refuse_tensors(model)
    patterns = None if layers is None else [layers] if isinstance(layers, str) else list(layers)
    modules = dict(model.named_modules())
    _check_patterns(patterns, _layer_names(modules), found)
    given_names = {tap.name for tap in given}
    held = {id(tensor) for tap in given for tensor in tap.parameters.values()}
    taps: list[Tap] = []
    untapped: dict[str, list[nn.Parameter]] = {}
    frozen, skipped, covered = found.frozen, found.skipped, set(found.modules)
    for name, module in modules.items():
        if name in covered:
            continue
        kind = None if name in given_names else ModuleTap.kind_of(module)
        if isinstance(module, torch.jit.ScriptModule):
            if any(True for _ in module.parameters(recurse=False)):
                skipped[name] = "it was compiled by torch.jit, whose modules run without hooks"
            continue
        if kind is None:
            own = [parameter for parameter in module.parameters(recurse=False) if id(parameter) not in held]
            if own:
                untapped[name], skipped[name] = own, _without_a_tap(module, own)
            continue
        within = (*kind.covered, *(own for own, _ in module.named_modules() if own.startswith("parametrizations")))
        covered.update(f"{name}.{own}" if name else own for own in within)
        # Asked before anything else: how a layer that is not trained computes, as a quantized one does, is no matter.
        reason = _frozen(module, owners)
        if refusal := why_not_numbers(module.named_parameters()) or kind.refusal(module):
            skipped[name] = reason or refusal
            if reason:
                frozen.add(name, _matrices(module.parameters()), reason, refusal)
            continue
        own_taps = [tap for tap in kind.taps_of(name, module, values) if tap.name not in given_names]
        if reason:
            skipped[name] = reason
            left_out = {_unwanted(tap.name, patterns) for tap in own_taps}
            frozen.add(name, _matrices(module.parameters()), reason, left_out.pop() if len(left_out) == 1 else "")
            continue
        for tap in own_taps:
            if unwanted := _unwanted(tap.name, patterns):
                skipped[tap.name] = unwanted
                continue
            if reason := owners.untrained(_matrices(tap.trained)):
                skipped[tap.name] = reason
                frozen.add(tap.name, _matrices(tap.trained), reason)
                continue
            tap.batch_dim = batch_dim_of(modules, name) if tap.batch_dim is None else tap.batch_dim
            taps.append(tap)
    held |= {id(tensor) for tap in taps for tensor in tap.parameters.values()}
    for name, own in untapped.items():
        if all(id(parameter) in held for parameter in own):
            del skipped[name]
        elif not _matrices(own) and (reason := owners.untrained(own)):
            frozen.add(name, own, reason)
    if not taps and not given and not found.watchers:
        reasons = "; ".join(f"{name or 'the model itself'}: {reason}" for name, reason in skipped.items())
        if not reasons:
            raise RecordingError(
                "Nothing to record: the model does not contain any parameters.",
                hint="Pass the model that the optimizer trains.",
            )
        raise RecordingError(
            f"Nothing to record: every layer was skipped ({reasons}).",
            hint="Create the optimizer from the parameters of the model that you pass to Recorder.",
        )
    return taps, skipped


def compiled_parts(model: nn.Module) -> list[str]:
    """The names of the modules whose calls torch.compile was asked to compile; "" is the model.

    Raises RecordingError where this torch cannot keep taps in compiled code.
    """
    parts = [
        name
        for name, module in model.named_modules()
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
    ]
    if parts and not COMPILES:
        raise RecordingError(
            f"{f'Part {parts[0]!r} of the model' if parts[0] else 'The model'} was compiled with torch.compile, which "
            f"dualform cannot record under torch {torch.__version__}.",
            hint="Use a newer torch, or train the model without torch.compile.",
        )
    return parts


def _refuse_copies(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.DataParallel):
            raise RecordingError(
                f"{f'Part {name!r} of the model' if name else 'The model'} is an nn.DataParallel, which runs "
                "copies of its layers on several devices at once.",
                hint="Use DistributedDataParallel with one process for each device, or one device without either.",
            )


def _refuse_tensors(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise RecordingError(
                f"Parameter {name!r} lacks a shape: its module is lazy and has not seen a batch.",
                hint="Run one batch through the model, then make the optimizer and the recorder.",
            )


def _layer_names(modules: Mapping[str, nn.Module]) -> list[str]:
    """Of every layer that there is a tap for."""
    found = list[str]()
    for name, module in modules.items():
        kind = ModuleTap.kind_of(module)
        if kind is not None:
            found += [name] if kind.refusal(module) else [tap.name for tap in kind.taps_of(name, module)]
    return found


def _check_patterns(patterns: Sequence[str] | None, names: Sequence[str], found: FoundLayers) -> None:
    for pattern in patterns or ():
        if not any(matches(name, pattern) for name in names) and not found.may_be(pattern):
            known = ", ".join(repr(name) for name in (*names, *found.names)) or "none"
            raise NotFound(
                f"layers={pattern!r} does not match any layer that can be recorded.",
                hint=f"Layers: {known}.",
                field="layers",
            )


def _without_a_tap(module: nn.Module, own: Sequence[Tensor]) -> str:
    kind = type(module).__name__
    if all(parameter.dim() < 2 for parameter in own):
        return f"not a matrix product ({kind})"
    return why_not_numbers(module.named_parameters(recurse=False)) or f"{kind} is not supported"


def _unwanted(name: str, patterns: Sequence[str] | None) -> str:
    wanted = patterns is None or any(matches(name, pattern) for pattern in patterns)
    return "" if wanted else "layers= leaves it out"


def _frozen(module: nn.Module, owners: Owners) -> str:
    weights = _matrices(module.parameters())
    return owners.untrained(weights) if weights and not any(weight.requires_grad for weight in weights) else ""


def _matrices(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.dim() > 1]
