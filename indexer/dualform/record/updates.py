"""What the optimizer did: one log a step, and every reason why a layer cannot be rebuilt exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from dualform.record.gradient_factor import GradientFactors, Measure
from dualform.record.optimizers import group_of, read_groups, unscaling
from dualform.record.taps import Tap
from dualform.store.batch import Defect, Factor, StepLog


class Updates:
    """Logs and defects of the recorded layers, collected until a batch takes them along."""

    def __init__(self, optimizer: Optimizer, taps: Sequence[Tap]) -> None:
        """Gradients are held against the recorded slots. Without values nothing can be rebuilt that they would have
        to explain; where no layer has any, an update is taken to use all steps since the last one.
        """
        self._optimizer = optimizer
        self._taps: list[Tap] = []
        self._factors: list[GradientFactors] = []
        self._valued: set[str] = set()
        self._unused: list[int] = []
        self._logs: list[StepLog] = []
        self._defects: list[Defect] = []
        self._told: set[tuple[str, str]] = set()
        self._open: int | None = None
        self._open_dtypes: Mapping[str, torch.dtype] = {}
        self.join(taps)

    @property
    def awaited(self) -> bool:
        """Whether the last step may still be updated."""
        return self._open is not None

    def join(self, taps: Sequence[Tap]) -> None:
        """Take in layers that were first reached after the first step."""
        self._taps += taps
        valued = [tap for tap in taps if tap.values]
        self._valued |= {tap.name for tap in valued}
        if valued:
            self._factors.append(GradientFactors(valued, seed=len(self._factors)))

    def add(self, step: int, rows: Sequence[tuple[str, Tensor, Tensor | None]]) -> bool:
        """Take a step's slots as gradients that the next update uses: layer, keys float32[n, d_in] and error signals
        float32[n, d_out]; a layer comes once for each call. False where NaN or infinity may be among those of layers
        with values.
        """
        self._unused.append(step)
        parts: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for name, keys, errors in rows:
            if name in self._valued and errors is not None:
                parts.setdefault(name, []).append((keys, errors))
        joined = {name: _joined(calls) for name, calls in parts.items()}
        finite = [factors.add(step, joined) for factors in self._factors]
        return all(finite)

    def forget(self, step: int) -> None:
        """Take a step back that comes to nothing."""
        self._unused = [other for other in self._unused if other != step]
        for factors in self._factors:
            factors.forget(step)

    def await_update(self, step: int, dtypes: Mapping[str, torch.dtype]) -> None:
        """A step ended without an update; one may follow until the next step begins."""
        self._open, self._open_dtypes = step, dtypes

    def close_step(self) -> None:
        """The awaited update did not come."""
        if self._open is not None:
            self._logs.append(StepLog(self._open, updated=False))
            self._open = None

    def update_awaited(self) -> None:
        """The awaited update came."""
        assert self._open is not None
        step, self._open = self._open, None
        self.update(step, self._open_dtypes)

    def update(self, step: int, dtypes: Mapping[str, torch.dtype]) -> None:
        """The optimizer is about to update at `step`: measure, and log it. `dtypes`: of the step's gradients."""
        groups = group_of(self._optimizer)
        first, measures = next(iter(self._unused), None), list[Measure]()
        for number, one in enumerate(self._factors):
            start, measured = one.measure(frozenset(groups), unscaling(self._optimizer))
            first, measures = (first if number else start), measures + measured
            one.renew()
        self._unused = []
        factors = tuple(Factor(m.name, groups.get(m.parameter, 0), m.factor, m.residual) for m in measures)
        self._logs.append(StepLog(step, True, step if first is None else first, read_groups(self._optimizer), factors))
        for measure in measures:
            if not measure.explained:
                self.defect(step, measure.layer, "gradient", self._why(measure, step, dtypes.get(measure.layer)))

    def stray(self, step: int) -> None:
        """The optimizer updates although nothing was recorded since its last update."""
        for tap in self._taps:
            if any(parameter.grad is not None for parameter in tap.parameters.values()):
                self.defect(
                    step, tap.name, "stray", f"the optimizer stepped outside recorder.step at step {step}, "
                    "with gradients that no slot holds"
                )  # fmt: skip

    def defect(self, step: int, layer: str, kind: str, reason: str) -> None:
        """Note why a layer is inexact from `step` on; once for each kind."""
        if (layer, kind) not in self._told:
            self._told.add((layer, kind))
            self._defects.append(Defect(step, layer, reason))

    def take(self) -> tuple[list[StepLog], list[Defect]]:
        """What no batch has taken along yet."""
        taken = self._logs, self._defects
        self._logs, self._defects = [], []
        return taken

    def _why(self, measure: Measure, step: int, dtype: torch.dtype | None) -> str:
        what = f"{measure.residual:.1e} of the gradient of {measure.name} at step {step} is not in the recorded slots"
        if dtype in (torch.bfloat16, torch.float16):
            return f"{what}: it was computed in {str(dtype).removeprefix('torch.')}, which rounds it"
        return f"{what}: the weight is used elsewhere too, a path was not recorded, or the gradient was edited"


def _joined(calls: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """One layer's calls as one."""
    if len(calls) == 1:
        return calls[0]
    keys, errors = zip(*calls, strict=True)
    return torch.cat(keys), torch.cat(errors)
