"""How a network of the coverage table is trained: its optimizer, its precision, and the loops of its user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import dualform

from .network import Batch, Network, batches as batches_of

STEPS = 24

OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer | list[Optimizer]]] = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.05),
    "SGD, momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4),
    "SGD, Nesterov": lambda m: torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9, nesterov=True),
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=2e-3),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=2e-3),
    "AdamW, fused": lambda m: torch.optim.AdamW(m.parameters(), lr=2e-3, fused=True),
    "AdamW, two groups": lambda m: torch.optim.AdamW(_groups(m), lr=2e-3),
    "AMSGrad": lambda m: torch.optim.AdamW(m.parameters(), lr=2e-3, amsgrad=True),
    "NAdam": lambda m: torch.optim.NAdam(m.parameters(), lr=2e-3),
    "RAdam": lambda m: torch.optim.RAdam(m.parameters(), lr=2e-3),
    "Adamax": lambda m: torch.optim.Adamax(m.parameters(), lr=2e-3),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3, momentum=0.9),
    "Adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=1e-2),
    "Adadelta": lambda m: torch.optim.Adadelta(m.parameters(), lr=0.5),
    "ASGD": lambda m: torch.optim.ASGD(m.parameters(), lr=0.02),
    "Rprop": lambda m: torch.optim.Rprop(m.parameters(), lr=1e-3),
    "Adafactor": lambda m: torch.optim.Adafactor(m.parameters(), lr=1e-2),
    "LBFGS": lambda m: torch.optim.LBFGS(m.parameters(), max_iter=2),
    "SparseAdam": lambda m: torch.optim.SparseAdam(m.parameters(), lr=2e-3),
    "Muon and AdamW": lambda m: [
        torch.optim.Muon([p for p in m.parameters() if p.ndim == 2], lr=0.01),
        torch.optim.AdamW([p for p in m.parameters() if p.ndim != 2], lr=2e-3),
    ],
    "SGD and AdamW": lambda m: [
        torch.optim.SGD([p for p in m.parameters() if p.ndim >= 2], lr=0.02, momentum=0.9),
        torch.optim.AdamW([p for p in m.parameters() if p.ndim < 2], lr=2e-3),
    ],
}  # fmt: skip


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """No decay of norms and biases, as most trainers have it."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]


def _bfloat16_autocast() -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16)


def _float16_autocast() -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.float16)


@dataclass
class Training:
    """One training of a network, as a loop of its user's: `step` makes an update of a batch."""

    network: Network
    precision: str = "float32"
    model: nn.Module = field(init=False)
    rule: str = field(init=False)
    """Of OPTIMIZERS."""
    optimizers: list[Optimizer] = field(init=False)
    seconds: list[float] = field(init=False, default_factory=list)
    """Of the processor, in all threads of this process, for each step."""
    prefix: str = ""
    """Of the model's names in the memory, where the trainer wraps it."""
    _began: float | None = field(init=False, default=None)

    def start(self, optimizer: str, prepare: Callable[[nn.Module], object] = lambda model: None) -> None:
        """Build the network, prepare it where the optimizer is to hold what comes of that, and make the optimizer."""
        torch.manual_seed(0)
        self.model, self.rule = self.network.build(), optimizer
        if self.precision == "bfloat16":
            self.model.bfloat16()
        self.model.train()
        prepare(self.model)
        made = OPTIMIZERS[optimizer](self.model)
        self.optimizers = made if isinstance(made, list) else [made]
        torch.manual_seed(4)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=self.precision == "float16 autocast")

    @property
    def optimizer(self) -> Any:
        """What a recorder is given: the optimizer, or all of them where there are several."""
        return self.optimizers[0] if len(self.optimizers) == 1 else self.optimizers

    def autocast(self) -> AbstractContextManager[object]:
        contexts = {"bfloat16 autocast": _bfloat16_autocast, "float16 autocast": _float16_autocast}
        return contexts.get(self.precision, nullcontext)()

    def cast(self, batch: Batch) -> Batch:
        """A batch as a network of this precision takes it."""
        if self.precision != "bfloat16":
            return batch
        return {name: own.bfloat16() if own.is_floating_point() else own for name, own in batch.items()}

    def backward(self, batch: Any, share: float = 1.0, model: nn.Module | None = None) -> None:
        with self.autocast():
            loss = self.network.loss(self.model if model is None else model, self.cast(batch)) * share
        self.scaler.scale(loss).backward()

    def update(self) -> None:
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def unscale(self) -> None:
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)

    def tick(self) -> None:
        """A step begins, or the last one is over."""
        now = process_time()
        if self._began is not None:
            self.seconds.append(now - self._began)
        self._began = now

    def batches(self) -> Iterator[tuple[Any, dict[str, object]]]:
        for batch, columns in batches_of(self.network, STEPS):
            self.tick()
            yield batch, columns
        self.tick()


@dataclass(frozen=True)
class Record:
    """Where to record, and the recorder's arguments."""

    folder: Path
    options: Mapping[str, Any]


@contextmanager
def recorder_of(
    training: Training, record: Record | None, **options: Any
) -> Iterator[Callable[..., AbstractContextManager[object]]]:
    """What opens a step of the recorder, or nothing."""
    if record is None:
        yield lambda **columns: nullcontext()
        return
    options = {"quiet": True, **record.options, **options}
    with dualform.Recorder(training.model, training.optimizer, record.folder, **options) as recorder:
        yield recorder.step


def loop(training: Training, record: Record | None) -> None:
    with recorder_of(training, record) as step:
        for batch, columns in training.batches():
            with step(**columns):
                training.backward(batch)
                training.update()


def clipped_micro_batches(training: Training, record: Record | None) -> None:
    """Two halves of each batch accumulate, as steps of their own, and their gradient is clipped."""
    with recorder_of(training, record) as step:
        for batch, columns in training.batches():
            for number, half in enumerate((slice(None, None, 2), slice(1, None, 2))):
                with step(**{**columns, "sample": columns["sample"][half]}):
                    training.backward({name: values[half] for name, values in batch.items()}, 0.5)
                    if number:
                        training.unscale()
                        nn.utils.clip_grad_norm_(training.model.parameters(), 0.5)
                        training.update()


def compiled(training: Training, record: Record | None) -> None:
    torch._dynamo.reset()  # what was compiled of an unrecorded network would run in this one's place
    model = torch.compile(training.model, backend="aot_eager")
    with recorder_of(training, record) as step:
        for batch, columns in training.batches():
            with step(**columns):
                training.backward(batch, model=model)
                training.update()


def checkpointed(training: Training, record: Record | None, reentrant: bool = False) -> None:
    training.model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    loop(training, record)


def closure(training: Training, record: Record | None) -> None:
    """One closure an update, as LBFGS wants it."""
    with recorder_of(training, record) as step:
        for batch, columns in training.batches():
            with step(**columns):

                def evaluate(batch: Batch = batch) -> Tensor:
                    training.optimizers[0].zero_grad()
                    loss = training.network.loss(training.model, batch)
                    loss.backward()
                    return loss

                training.optimizers[0].step(evaluate)
