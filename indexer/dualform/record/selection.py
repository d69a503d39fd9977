"""Which layers of a model are recorded, and why the others are not."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn
from torch.optim import Optimizer

from dualform.errors import NotFound, RecordingError
from dualform.record.tap_gru import TappedGRU
from dualform.record.tap_linear import TappedLinear
from dualform.record.tap_lstm import TappedLSTM
from dualform.record.taps import Tap

KINDS: tuple[type[Tap], ...] = (TappedLinear, TappedLSTM, TappedGRU)
"""The kinds there are; a kind registers itself when it is imported."""


def select(
    model: nn.Module, optimizer: Optimizer, layers: str | Sequence[str] | None, values: bool = True
) -> tuple[list[Tap], dict[str, str]]:
    """Taps in the model's order, and name -> reason for every other layer that holds parameters.

    `layers` are names or patterns (fnmatch), None for all; `values`: error signals are wanted. Raises NotFound for one
    that matches no such layer, and RecordingError for a compiled model or where nothing is left to record.
    """
    _refuse_compiled(model)
    patterns = None if layers is None else [layers] if isinstance(layers, str) else list(layers)
    modules = dict(model.named_modules())
    _check_patterns(patterns, [name for name, module in modules.items() if Tap.kind_of(module)])
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    taps: list[Tap] = []
    skipped: dict[str, str] = {}
    for name, module in modules.items():
        kind = Tap.kind_of(module)
        if kind is None:
            if next(module.parameters(recurse=False), None) is not None:
                skipped[name] = f"there is no tap for {type(module).__name__}"
            continue
        reason = kind.refusal(module) or _unwanted(name, patterns) or _untrained(kind(name, module), trained)
        if reason:
            skipped[name] = reason
        else:
            taps.append(kind(name, module, values))
    if not taps:
        raise RecordingError(
            "the model has no layer to record: "
            + (
                "; ".join(f"{name or 'the model itself'}: {reason}" for name, reason in skipped.items())
                or "it holds no parameters"
            )
            + "."
        )
    return taps, skipped


def _refuse_compiled(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise RecordingError(
                f"{f'the part {name!r} of the model' if name else 'the model'} was compiled with torch.compile: "
                "layers inside it run without their hooks and nothing would be recorded.",
                hint="Give the recorder the model as it was before torch.compile, and train that one.",
            )


def _check_patterns(patterns: Sequence[str] | None, names: Sequence[str]) -> None:
    for pattern in patterns or ():
        if not any(_matches(name, pattern) for name in names):
            known = ", ".join(repr(name) for name in names) or "none"
            raise NotFound(
                f"layers={pattern!r} matches no layer that there is a tap for.",
                hint=f"Those are {known}.",
                field="layers",
            )


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def _unwanted(name: str, patterns: Sequence[str] | None) -> str:
    wanted = patterns is None or any(_matches(name, pattern) for pattern in patterns)
    return "" if wanted else "layers= leaves it out"


def _untrained(tap: Tap, trained: set[int]) -> str:
    weights = [tensor for tensor in tap.parameters.values() if tensor.dim() > 1]
    if not any(weight.requires_grad for weight in weights):
        return "its weight is frozen"
    if not any(id(weight) in trained for weight in weights):
        return "its weight is not among the optimizer's parameters"
    return ""
