"""Record a Lightning training, with either of its two packages:

    record = RecordCallback("runs/mine", columns={"label": 1, "sample": 2})     # batches are (images, labels, samples)
    Trainer(max_epochs=3, callbacks=[record]).fit(module, loader)

Each batch is a step, even if several batches make one update. If several optimizers update in turn, as in a GAN, each
backward pass after an update is also a step. If the trainer trains again, that training is recorded in `mine-2`. Layers
have the names that they have in the LightningModule.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from os import PathLike
from typing import TYPE_CHECKING, Any

from dualform.extras import missing_package
from dualform.integrations.columns import Columns, said_of
from dualform.integrations.folders import Folders
from dualform.integrations.query_sets import LastWeights, QuerySets
from dualform.record.recorder import Recorder


def _bases() -> tuple[type, ...]:
    """The callback's class of each package that is installed: a trainer takes those of its own alone."""
    packages = [name for name in ("pytorch_lightning", "lightning") if find_spec(name) is not None]
    try:
        modules = [import_module("lightning.pytorch" if name == "lightning" else name) for name in packages]
    except ImportError as error:
        raise missing_package(error) or error from None
    if not modules:
        absent = ImportError("there is no Lightning", name="pytorch_lightning")
        raise missing_package(absent) or absent
    return tuple(module.Callback for module in modules)


class _Skipped(Exception):
    """A batch that was left out."""


if TYPE_CHECKING:
    _Callback = object
else:
    _Callback = type("_Callback", _bases(), {})


class RecordCallback(_Callback):
    """Records the training of a Lightning trainer. Each rank writes its own slots."""

    def __init__(
        self,
        path: str | PathLike[str],
        columns: Columns = (),
        *,
        dataset: str | None = None,
        query_sets: Mapping[str, Any] | None = None,
        query_set_labels: Mapping[str, Any] | None = None,
        query_set_previews: Mapping[str, Any] | None = None,
        make: Callable[..., Recorder] = Recorder,
        **recorder: Any,
    ) -> None:
        """Choose the folder, the columns and the query sets.

        - `path`: the folder of the memory.
        - `columns`: column -> its place or name in a batch, or a function of the batch. If the names are the same, a
          list of names. Or a function from a batch to the arguments of `recorder.step`.
        - `dataset`: the name of all data.
        - `query_sets`: name -> inputs of the module, recorded when the training ends.
        - `query_set_labels`: name -> integer labels.
        - `query_set_previews`: name -> dualform.PreviewSet.
        - `make`: the function that makes the recorder, for dualform.estimate.
        - `recorder`: further arguments of `Recorder`, such as `layers`.

        Raises BadInput for labels or previews of an unknown query set.
        """
        super().__init__()
        self.recorder: Recorder | None = None
        """Of the training that runs, or ran last."""
        self._folders, self._columns, self._arguments = Folders(path, bool(recorder.get("resume"))), columns, recorder
        self._make = make
        self._said = {} if dataset is None else {"dataset": dataset}
        self._query_sets = QuerySets(query_sets, query_set_labels, query_set_previews)
        self._open = False
        self._last: LastWeights | None = None
        self._step: Any = None
        """The step that runs; None where none does."""
        self._entered: Any = None
        """What it gave when it was entered, by which more is said of it."""
        self._said_now: dict[str, Any] = {}
        """What is said of its batch."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """First of all callbacks: others put averages in place of the weights as the training ends."""
        trainer.callbacks = [self, *(other for other in trainer.callbacks if other is not self)]

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """What the trainer restores from a checkpoint is there by now."""
        optimizers = trainer.optimizers
        if trainer.gradient_clip_val and str(getattr(trainer.gradient_clip_algorithm, "value", "")) == "value":
            warnings.warn(
                'gradient_clip_algorithm="value" edits single entries of gradients, which no slot explains: outputs '
                'and weights will be approximate. Clip by "norm" to have them.',
                RuntimeWarning,
                stacklevel=2,
            )
        self.recorder = self._make(
            module, optimizers[0] if len(optimizers) == 1 else optimizers, self._folders.folder(self.recorder),
            rank=trainer.global_rank, ranks=trainer.world_size, **self._arguments,
        )  # fmt: skip
        self.recorder.__enter__()
        self._open = True

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        assert self.recorder is not None
        self._let_go()
        self._said_now = {**self._said, **said_of(batch, self._columns, first=not self.recorder.steps)}
        self._enter()

    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        """A pass behind an update of the same batch is a step of its own."""
        before = self._entered
        if self._step is None or before is None or module.automatic_optimization or not before.updated:
            return
        self._leave()
        self._enter().continues(before)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._leave()

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        """The memory is never behind a checkpoint."""
        if self._open and self.recorder is not None and self._step is None:
            self.recorder.flush()

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self._let_go()
        assert self.recorder is not None
        try:
            self._query_sets.take(self.recorder)
        finally:  # where a query set cannot be taken, the training is whole all the same
            self._last = LastWeights(module, self.recorder.path)
            self._close(None)

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """Other callbacks put averages in place of the weights once the record is closed."""
        last, self._last = self._last, None
        if last is not None:
            names = [type(own).__name__ for own in trainer.callbacks if "averag" in type(own).__name__.lower()]
            last.warn_if_replaced(" and ".join(names) or "a callback")

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self._let_go()
        self._close(exception)

    def _enter(self) -> Any:
        assert self.recorder is not None
        step = self.recorder.step(**self._said_now)
        self._entered = step.__enter__()
        self._step = step
        return self._entered

    def _leave(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def _let_go(self) -> None:
        """Forget a step whose batch the module chose to leave out: nobody is told of its end."""
        step, self._step = self._step, None
        if step is not None:
            skipped = _Skipped()
            step.__exit__(type(skipped), skipped, None)

    def _close(self, error: BaseException | None) -> None:
        if self._open and self.recorder is not None:
            self._open = False
            self.recorder.__exit__(None if error is None else type(error), error, None)
