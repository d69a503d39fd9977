"""The optimizers of a training: which parameters each updates, by which rule, with which settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from dualform.errors import BadInput, RecordingError
from dualform.record.layout import HALVED
from dualform.record.ranks import unwrapped
from dualform.record.taps import Tap
from dualform.rules import Settings, UpdateRule, of_type, settings_of, why_not_followed, why_refused
from dualform.rules.half_precision_rule import RoundedRule
from dualform.rules.update_rule import setting
from dualform.store.batch import ParameterGroup


class Owners:
    """The optimizers of a training, and which of them holds a parameter. One that none holds counts as the first's."""

    def __init__(self, optimizers: Sequence[Optimizer], model: nn.Module) -> None:
        """Raises RecordingError where two of them hold one parameter."""
        self.optimizers = tuple(optimizers)
        self._of: dict[int, int] = {}
        for number, optimizer in enumerate(self.optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if self._of.setdefault(id(parameter), number) != number:
                        raise self._shared(parameter, number, model)

    def _shared(self, parameter: Tensor, number: int, model: nn.Module) -> RecordingError:
        names = [repr(name) for name, own in model.named_parameters() if own is parameter]
        first, other = self.named(self._of[id(parameter)]), self.named(number)
        return RecordingError(
            f"{f'parameter {names[0]}' if names else 'a parameter outside the model'} is updated by {first} and by "
            f"{other}.",
            hint="Give each parameter to one optimizer: a recording follows one update rule for each.",
        )

    @property
    def numbers(self) -> set[int]:
        return set(range(len(self.optimizers)))

    def hold(self, tensor: Tensor) -> bool:
        """Whether any of them holds a parameter."""
        return id(tensor) in self._of

    def untrained(self, weights: Iterable[Tensor], it: str = "its weight") -> str:
        """Why none of a layer's weights is trained; empty where one is. `it`: what they are called."""
        asking = [weight for weight in weights if weight.requires_grad]
        if not asking:
            return f"{it} is frozen"
        return "" if any(map(self.hold, asking)) else f"{it} is not among the optimizer's parameters"

    def of(self, tensor: Tensor) -> int:
        """The number of the optimizer that a parameter belongs to."""
        return self._of.get(id(tensor), 0)

    def among(self, tensors: Iterable[Tensor]) -> Mapping[int, list[Tensor]]:
        """Some parameters by the number of their optimizer."""
        found: dict[int, list[Tensor]] = {}
        for tensor in tensors:
            found.setdefault(self.of(tensor), []).append(tensor)
        return found

    def named(self, number: int) -> str:
        """What messages call an optimizer."""
        if len(self.optimizers) == 1:
            return "the optimizer"
        return f"optimizer {number} ({type(self.optimizers[number]).__name__})"


def optimizers_of(given: Any) -> list[Optimizer]:
    """The torch optimizers that were given: one, or several in a list or tuple.

    Raises BadInput for anything else, for none at all, and where one is given twice.
    """
    every = list(given) if isinstance(given, list | tuple) else [given]
    found = [unwrapped(optimizer) for optimizer in every]
    if not found:
        raise BadInput(
            "optimizer must not be an empty list.",
            hint="Pass the training's optimizer, or a list of all of them.",
            field="optimizer",
        )
    if len({id(optimizer) for optimizer in found}) < len(found):
        raise BadInput("optimizer names the same optimizer twice.", hint="Pass each optimizer once.", field="optimizer")
    return found


def rule_of(optimizer: Optimizer) -> UpdateRule | None:
    """The rule that follows the optimizer's update; None where there is none, or it refuses a group's settings."""
    return None if why_no_rule(optimizer) else of_type(type(optimizer))


def why_no_rule(optimizer: Optimizer) -> str:
    """Why weights cannot be rebuilt from its gradients; empty where a rule follows its update."""
    rule, name = of_type(type(optimizer)), type(optimizer).__name__
    only_scores = "attention scores are exact, outputs and weights cannot be rebuilt"
    if reason := why_refused(type(optimizer)):
        return f"the network was trained with {name}, which no update rule can follow, for {reason}: {only_scores}"
    if rule is None:
        return f"the network was trained with {name}, for which there is no update rule: {only_scores}"
    for number, group in enumerate(optimizer.param_groups):
        if refusal := _refusal(optimizer, rule, group):
            return f"the rule of {name} cannot follow parameter group {number}, for {refusal}: {only_scores}"
    return ""


def check_followed(optimizers: Iterable[Optimizer], taps: Iterable[Tap]) -> None:
    """Raises RecordingError where one of the optimizers is such that no rule can follow it, and trains a layer."""
    recorded = {id(tensor) for tap in taps for tensor in tap.parameters.values()}
    for optimizer in optimizers:
        reason = why_refused(type(optimizer))
        if reason and recorded & group_of(optimizer).keys():
            raise RecordingError(
                f"dualform cannot follow the updates of {type(optimizer).__name__}: {reason}.",
                hint="Pass values=False to record only attention scores, or train with another optimizer.",
            )


def _refusal(optimizer: Optimizer, rule: UpdateRule, group: dict[str, Any]) -> str:
    try:
        found = rule.refusal(group) or why_not_followed(rule, settings_read(rule, group))
    except Exception as error:  # whatever a rule of one's own raises must not end the training
        return f"it raised {type(error).__name__}: {error}"
    kinds = (*rule.buffers, *rule.statistics)
    for tensor in group["params"]:
        for kind, buffer in zip(kinds, buffers_of(optimizer, rule, [tensor]), strict=True):
            if isinstance(buffer, Tensor) and not _fits(buffer.shape, tensor.shape):
                return f"its {kind} of shape {tuple(buffer.shape)} does not fit a parameter of {tuple(tensor.shape)}"
    return str(found)


def _fits(shape: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether an array broadcasts to a shape; one number does whatever its axes."""
    sizes = zip(reversed(shape), reversed(whole), strict=False)
    return prod(shape) == 1 or (len(shape) <= len(whole) and all(size in (1, other) for size, other in sizes))


def settings_read(rule: UpdateRule, group: Mapping[str, Any]) -> Settings:
    """A group's settings as a rule reads them. Raises KeyError, TypeError and ValueError for what cannot be logged, and
    whatever a rule of one's own raises.
    """
    found = rule.read(group)
    if type(rule).__module__.startswith("dualform.rules."):
        return found
    return {name: (bool if kind == "BOOLEAN" else float)(found[name]) for name, kind in rule.settings.items()}


def around_each_update(
    optimizer: Optimizer,
    updating: Callable[[], None],
    updated: Callable[[], None],
    again: Callable[[], None],
    failed: Callable[[Exception], None],
    whole: bool = False,
) -> Callable[[], None]:
    """Call `updating` whenever the gradients are final and the weights have not moved, `updated` once they have.

    Not before an update that the optimizer itself will skip. One that evaluates its closure several times moves the
    weights in between: `again` is called after each further time. `whole`: what moves the weights is no matter, so that
    the update is taken as one, of all that its closure computes, once it is over. `failed` is handed whatever one of
    these raises. Returns what ends it.
    """
    evaluations = 0

    def before(_: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        nonlocal evaluations
        evaluations = 0
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            try:
                found = getattr(optimizer, "found_inf", None)  # how a GradScaler tells a fused optimizer to skip
                if found is None or not float(found):
                    updating()
            except Exception as error:
                failed(error)
            return None

        def closed() -> Any:  # the gradients that count are those the closure computes
            nonlocal evaluations
            loss = closure()
            evaluations += 1
            try:
                if not whole:
                    (updating if evaluations == 1 else again)()
            except Exception as error:
                failed(error)
            return loss

        return (args[0], closed), {name: value for name, value in kwargs.items() if name != "closure"}

    def after(_: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            if whole and evaluations:
                updating()
            updated()
        except Exception as error:
            failed(error)

    with ExitStack() as hooks:
        hooks.callback(optimizer.register_step_pre_hook(before).remove)
        hooks.callback(optimizer.register_step_post_hook(after).remove)
        return hooks.pop_all().close


def unscaling(optimizer: Optimizer) -> float:
    """What the optimizer itself will multiply gradients by: a GradScaler leaves that to a fused one."""
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else 1.0 / float(scale)


def read_groups(optimizer: Optimizer, rule: UpdateRule | None) -> tuple[ParameterGroup, ...]:
    """The settings of every parameter group as they stand; without a rule, the rate alone."""
    if rule is not None:
        return tuple(ParameterGroup(settings_read(rule, group)) for group in optimizer.param_groups)
    kinds = settings_of("")
    return tuple(
        ParameterGroup({name: setting(group.get(name), kind) for name, kind in kinds.items()})
        for group in optimizer.param_groups
    )


def united(settings: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """The DuckDB types of several optimizers' settings: one that is a number for any of them is one for all."""
    found: dict[str, str] = {}
    for own in settings:
        for name, kind in own.items():
            found[name] = kind if found.setdefault(name, kind) == kind else "DOUBLE"
    return found


def group_of(optimizer: Optimizer) -> dict[int, int]:
    """id(parameter) -> index of its group."""
    return {id(p): index for index, group in enumerate(optimizer.param_groups) for p in group["params"]}


def buffers_of(optimizer: Optimizer, rule: UpdateRule, tensors: Iterable[Tensor]) -> list[Tensor | float | None]:
    """What the optimizer keeps of each parameter, buffers of one after those of another; None where it has none."""
    state, kinds = optimizer.state, (*rule.buffers, *rule.statistics)
    found = [own.get(kind) for own in (state.get(tensor) or {} for tensor in tensors) for kind in kinds]
    return [buffer if isinstance(buffer, Tensor | int | float) else None for buffer in found]


_OTHERWISE = ("foreach", "fused", "capturable", "differentiable", "amsgrad")
"""Settings under which an optimizer rounds at other places, or follows another rule."""


def halved_parameters(owners: Owners, taps: Sequence[Tap]) -> dict[str, str]:
    """By name, the type. Known is what torch does on the processor, one tensor after another, as it does unasked."""
    groups = {id(own): group for o in owners.optimizers for group in o.param_groups for own in group["params"]}
    rules = [rule_of(optimizer) for optimizer in owners.optimizers]
    return {
        place.name: HALVED[tensor.dtype]
        for tap in taps
        for place, tensor in tap.parameters.items()
        if tensor.dtype in HALVED
        and tensor.is_cpu
        and isinstance(rules[owners.of(tensor)], RoundedRule)
        and _one_by_one(groups.get(id(tensor), {}))
    }


def _one_by_one(group: dict[str, Any]) -> bool:
    return not any(group.get(name) for name in _OTHERWISE) and not isinstance(group.get("lr"), Tensor)
