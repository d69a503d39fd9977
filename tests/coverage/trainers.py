"""How a network of the coverage table is trained: by loops of one's own, by trainers, and by several ranks.

A trainer is imported by the row that it trains: together they take longer to load than a row takes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from . import training as own
from .network import BATCH, SAMPLES, Batch, batches as batches_of
from .ranks import parted, replicated
from .training import STEPS, Record, Training

Loop = Callable[[Training, Record | None], None]
"""Trains, and records what it trains where it is told to."""


def lightning(training: Training, record: Record | None) -> None:
    """Lightning's trainer; bfloat16 by its own name."""
    import pytorch_lightning as pl

    from dualform.integrations.lightning import RecordCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = training.model

        def training_step(self, batch: tuple[Batch, dict[str, Any]]) -> Tensor:
            return training.network.loss(self.model, batch[0])

        def configure_optimizers(self) -> list[Optimizer]:
            return training.optimizers

    class Clock(pl.Callback):
        def on_train_batch_start(self, *given: object) -> None:
            training.tick()

    training.prefix = "model."
    callbacks: list[pl.Callback] = [Clock()]
    if record is not None:
        callbacks += [RecordCallback(record.folder, lambda batch: batch[1], quiet=True, **record.options)]
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, precision="bf16-mixed" if training.precision == "bfloat16 autocast" else 32,
        gradient_clip_val=1.0, callbacks=callbacks,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(list(batches_of(training.network, STEPS)), batch_size=None))
    training.tick()


def transformers_trainer(training: Training, record: Record | None) -> None:
    """The Hugging Face Trainer: two micro-batches an update, clipped."""
    from transformers import TrainerCallback, TrainingArguments

    from dualform.integrations.transformers import RecordingTrainer

    class Clock(TrainerCallback):
        def on_step_begin(self, *given: object, **more: object) -> None:
            training.tick()

    data = training.network.data()
    samples = [{name: values[n] for name, values in data.items()} | {"sample": n} for n in range(SAMPLES)]
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=STEPS, per_device_train_batch_size=BATCH // 2, gradient_accumulation_steps=2,
            max_grad_norm=0.5, bf16=training.precision == "bfloat16 autocast", save_strategy="no", report_to=[],
            logging_strategy="no", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        trainer = RecordingTrainer(
            training.model, arguments, train_dataset=samples, optimizers=(training.optimizer, None),
            record=record and record.folder, columns=["sample"], dataset="a", callbacks=[Clock()],
            recorder={"quiet": True, **(record.options if record else {})},
        )  # fmt: skip
        trainer.train()
        training.tick()


TRAINERS: dict[str, Loop] = {
    "loop": own.loop,
    "accumulation, clipping": own.clipped_micro_batches,
    "torch.compile": own.compiled,
    "checkpointing": own.checkpointed,
    "checkpointing, reentrant": partial(own.checkpointed, reentrant=True),
    "closure": own.closure,
    "Lightning": lightning,
    "Transformers": transformers_trainer,
    "DDP": replicated,
    "FSDP2": parted,
}
