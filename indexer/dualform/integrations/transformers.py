"""Record a training with the Hugging Face Trainer:

    trainer = RecordingTrainer(model, args, train_dataset=data, record="runs/mine", columns=["sample"])
    trainer.train()

For your own trainer, write `class Mine(RecordMixin, MyTrainer): ...`. Each micro-batch is a step, even if several of
them make one update.

A step is the Trainer's `training_step`: forward and backward. The Trainer clips and updates after it, so the update
belongs to the last step before it. Its log is written with the next step, a flush, or the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from dualform.errors import RecordingError
from dualform.extras import missing_package
from dualform.integrations.columns import Columns, next_token, places_of, said_of
from dualform.integrations.folders import Folders
from dualform.integrations.query_sets import LastWeights, QuerySets
from dualform.record.recorder import Recorder

__all__ = ["RecordMixin", "RecordingTrainer", "next_token"]

if TYPE_CHECKING:
    Trainer = object
else:
    try:
        from transformers import Trainer
    except ImportError as error:
        raise missing_package(error) or error from None


class RecordMixin:
    """Records the training of a Trainer; put it before the Trainer among the bases. Each rank writes its own slots.

    A batch's `attention_mask` [B, L] marks its real tokens; padding becomes no slots. If an encoder and a decoder have
    different tokens, override `said_of_batch`.
    """

    def __init__(
        self,
        *arguments: Any,
        record: str | PathLike[str] | None = None,
        columns: Columns = (),
        dataset: str | None = None,
        query_sets: Mapping[str, Any] | None = None,
        query_set_labels: Mapping[str, Any] | None = None,
        query_set_previews: Mapping[str, Any] | None = None,
        recorder: Mapping[str, Any] | None = None,
        make: Callable[..., Recorder] = Recorder,
        **named: Any,
    ) -> None:
        """Choose the folder, the columns and the query sets. Other arguments go to the Trainer.

        - `record`: the folder of the memory; None records nothing. If the trainer trains again, as with
          `auto_find_batch_size`, that training is recorded in `mine-2`.
        - `columns`: column -> its name in a batch, or a function of the batch such as `next_token`. If the names are
          the same, a list of names. Columns that the model does not take are kept from it, without
          `remove_unused_columns=False`.
        - `dataset`: the name of all data.
        - `query_sets`: name -> inputs of the model, recorded when the training ends.
        - `query_set_labels`: name -> integer labels.
        - `query_set_previews`: name -> dualform.PreviewSet.
        - `recorder`: further arguments of `Recorder`, such as `layers`.
        - `make`: the function that makes the recorder, for dualform.estimate.

        Raises BadInput for labels or previews of an unknown query set.
        """
        self.recorder: Recorder | None = None
        """Of the training that runs, or ran last."""
        self._columns, self._dataset = columns, dataset
        self._query_sets, self._recorder_arguments = (
            QuerySets(query_sets, query_set_labels, query_set_previews),
            dict(recorder or {}),
        )
        self._make = make
        self._folders = None if record is None else Folders(record, bool(self._recorder_arguments.get("resume")))
        self._recording, self._taken = False, frozenset[str]()
        super().__init__(*arguments, **named)

    def said_of_batch(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of `recorder.step` for a batch. `inputs` includes the columns that are kept from the model."""
        said: dict[str, Any] = {} if self._dataset is None else {"dataset": self._dataset}
        mask = inputs.get("attention_mask")
        if isinstance(mask, Tensor) and mask.dim() == 2:
            said["mask"] = mask.bool()
        assert self.recorder is not None
        return said | said_of(inputs, self._columns, first=not self.recorder.steps)

    def training_step(self, model: nn.Module, inputs: Any, *rest: Any, **named: Any) -> Tensor:
        train = super().training_step  # type: ignore[misc]
        if self._folders is None:
            return train(model, self._for_model(inputs), *rest, **named)  # type: ignore[no-any-return]
        if not self._recording:
            self._begin(model, self._folders)
        assert self.recorder is not None
        with self.recorder.step(**self.said_of_batch(inputs)):
            return train(model, self._for_model(inputs), *rest, **named)  # type: ignore[no-any-return]

    def prediction_step(self, model: nn.Module, inputs: Any, *rest: Any, **named: Any) -> Any:
        return super().prediction_step(model, self._for_model(inputs), *rest, **named)  # type: ignore[misc]

    def _begin(self, model: nn.Module, folders: Folders) -> None:
        """With the first batch: model and optimizer are by now what is trained, and as a checkpoint left them."""
        if isinstance(model, nn.DataParallel):
            raise RecordingError(
                "The Trainer has put the model into nn.DataParallel, which cannot be recorded.",
                hint="Start one process for each GPU (torchrun, accelerate launch), or show it only one GPU.",
            )
        own: Any = self
        self.recorder = self._make(
            own.model, own.optimizer, folders.folder(self.recorder), rank=own.args.process_index,
            ranks=own.args.world_size, **self._recorder_arguments,
        )  # fmt: skip
        self.recorder.__enter__()
        self._recording = True

    def _set_signature_columns_if_needed(self) -> None:
        """Columns of the memory stay in the data set."""
        own: Any = self
        known = own._signature_columns is not None
        if known:
            return
        super()._set_signature_columns_if_needed()  # type: ignore[misc]
        self._taken = frozenset(own._signature_columns)
        own._signature_columns += self._kept() - self._taken

    def _for_model(self, inputs: Any) -> Any:
        """A batch without the columns that the model does not take."""
        if not isinstance(inputs, Mapping) or not (kept := self._kept() & inputs.keys()):
            return inputs
        self._set_signature_columns_if_needed()
        return {name: part for name, part in inputs.items() if name not in kept or name in self._taken}

    def _kept(self) -> set[str]:
        return {str(place) for place in places_of(self._columns).values() if not callable(place)}

    def _save_checkpoint(self, *arguments: Any, **named: Any) -> Any:
        """The memory is never behind a checkpoint."""
        if self._recording and self.recorder is not None:
            self.recorder.flush()
        return super()._save_checkpoint(*arguments, **named)  # type: ignore[misc]

    def _finalize_training(self, *arguments: Any, **named: Any) -> Any:
        """Before the best weights are put in place of the last."""
        own: Any = self
        recording = self._recording
        self._end(None)
        last = LastWeights(own.model, self.recorder.path) if recording and self.recorder is not None else None
        finalized = super()._finalize_training(*arguments, **named)  # type: ignore[misc]
        if last is not None:
            last.warn_if_replaced("load_best_model_at_end")
        return finalized

    def _inner_training_loop(self, *arguments: Any, **named: Any) -> Any:
        try:
            trained = super()._inner_training_loop(*arguments, **named)  # type: ignore[misc]
        except BaseException as error:
            self._end(error)
            raise
        self._end(None)
        return trained

    def _end(self, error: BaseException | None) -> None:
        if not self._recording or self.recorder is None:
            return
        self._recording = False
        try:
            if error is None:
                self._query_sets.take(self.recorder)
        finally:  # where a query set cannot be taken, the training is whole all the same
            self.recorder.__exit__(None if error is None else type(error), error, None)


class RecordingTrainer(RecordMixin, Trainer):
    """The Hugging Face Trainer, recorded."""
