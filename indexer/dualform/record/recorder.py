"""The recorder: watches a training and writes its memory.

    recorder = dualform.Recorder(model, optimizer, "runs/mnist")
    with recorder:
        for x, y, index in loader:
            with recorder.step(dataset="mnist", label=y, sample=index):
                loss = cross_entropy(model(x), y)
                optimizer.zero_grad(); loss.backward(); optimizer.step()

The training comes out bit for bit as it would without the recorder.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from dualform.errors import BadInput, RecordingError
from dualform.record.blocks import check_blocks
from dualform.record.budget_plan import BudgetPlan
from dualform.record.example_signals import Examples, Loss
from dualform.record.found_layers import FoundLayers
from dualform.record.join_hook import Joinable
from dualform.record.model_arguments import Arguments, Inputs
from dualform.record.optimizers import check_followed
from dualform.record.owners import Owners, optimizers_of
from dualform.record.plan import Plan
from dualform.record.query_sets import check_examples, labels_of
from dualform.record.ranks import shard_of
from dualform.record.recorded_training import RecordedTraining
from dualform.record.resumption import resumption_of
from dualform.record.selection import compiled_parts, select
from dualform.record.sharded_parameters import check_sharding
from dualform.record.sink import Sink
from dualform.record.spaces import Spaces
from dualform.record.step import Step
from dualform.record.summary import Summary, listed, summary_of, tell
from dualform.record.taps import Tap
from dualform.record.training_shard import TrainingShard, leave
from dualform.record.wrappers import unwrapped_model
from dualform.store.byte_counts import readable
from dualform.store.forks import OwnProcess
from dualform.store.header import Header
from dualform.store.new_folder import check_new_folder
from dualform.store.previews.preview_file import dataset_name
from dualform.store.previews.preview_set import PreviewSet
from dualform.store.query_sets import check_name
from dualform.store.writer import Writer


class Recorder(Joinable):
    """Records one training of one model; leave its `with`, and the memory is complete and no hook remains."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        path: str | PathLike[str],
        layers: str | Sequence[str] | None = None,
        values: bool = True,
        label_names: Mapping[str, Sequence[str]] | None = None,
        *,
        keys: bool = True,
        spaces: Mapping[str, str] | None = None,
        routed: str | Sequence[str] = (),
        taps: Sequence[Tap] = (),
        on_error: Literal["raise", "stop_recording", "warn"] = "raise",
        quiet: bool = False,
        sink: Callable[[Header], Sink] = Writer,
        rank: int = 0,
        ranks: int | TrainingShard = 1,
        resume: bool | int = False,
        budget: int | str | None = None,
        keep: Literal["samples", "steps"] = "samples",
        steps: int | None = None,
        seed: int = 0,
    ) -> None:
        """`optimizer`: what updates the model; a list where several do, each of them parameters of its own, at steps of
        its own. A backward pass that follows another optimizer's update belongs into a step of its own, which
        `continues` the one before it where its forward pass ran there.

        `layers`: names or patterns of the layers to record, None for all; `values`: keep error signals and measure
        gradient factors, which outputs and weights need; `label_names`: by dataset, names of labels 0, 1, …;
        `keys=False`: keep a digest of each step instead of keys and values, for questions answered by a Rerun.

        `spaces`: name or pattern of layers -> the slot space that their slots belong to. Without it a key [B, d] is a
        slot of "sample", and keys [B, L…, d] are slots of "token". `routed`: names or patterns of layers whose rows the
        model chooses, as it does an expert's; each has a space of its own, and its slots know their row only where
        `step(at=…)` gives it.

        `on_error`: what a failure of writing does, metadata that stops fitting its batches, and whatever fails inside a
        hook of the recorder: "raise" ends the training; "stop_recording" (as "warn", its name before, still does) warns
        once, and the training goes on without being recorded. Either way what was durable is a memory. The first step
        always raises. `quiet`: the table of
        what is recorded is not written to stderr, as with the environment variable DUALFORM_QUIET; warnings stay.
        `taps`: of layers that are no modules. `sink`: makes what takes the batches, on a thread of its own, in place of
        the store's writer.

        `rank`, `ranks`: of this process among those of a data-parallel training, which all make a recorder of the same
        `path`, after init_process_group. Each writes its own slots; `model` may be the DistributedDataParallel one.
        Where something else than torch.distributed joins the processes, `ranks` is a TrainingShard, as a `Ranks` over
        it. A model that `fully_shard` parted over all ranks is recorded if the
        recorder is made after it and after the optimizer; leave the recorder's `with` before destroy_process_group.
        Ranks with different numbers of batches train under torch's `Join([model, recorder])`.

        `resume`: the training goes on from a checkpoint, in the folder of its memory; the model and the optimizers are
        to be as they were saved before the first step begins. The recorder must have been flushed at that moment: it
        finds it again by the bits of weights and buffers, or is told after how many steps it was. What was recorded
        behind it is no part of the memory from then on. Where there is nothing in `path` yet, a memory is begun.

        `budget`: the bytes that the memory may take on disk, as 200_000_000_000 or "200 GB"; of several ranks, each has
        an equal part, and a share of its own. Where all slots would not fit, a share of the samples is kept, each with
        all of its slots in all layers, or with `keep="steps"` a share of the recorder's steps, of which an update may
        take several: what was dropped is missing in sums and hits, which say so, and outputs and weights are exact only
        as of steps before the first that lacks slots. Before any slot is dropped, parameters of no layer are not kept
        step by step any more. `steps`: how many are planned, by which the share is set at the first one; it is halved
        whenever that turns out to be too much, and without it, whenever half of what was left has been used. The
        samples are drawn by `seed`, and by which step and row they are.

        Raises AlreadyExists where `path` holds anything, NotFound where a pattern matches nothing, RecordingError for a
        model that cannot be recorded, and for a training that cannot be resumed; so does the first step.
        """
        self.path = Path(path).absolute()  # the process may go to another folder
        if on_error not in ("raise", "stop_recording", "warn"):
            raise BadInput(
                f"Unknown on_error {on_error!r}.",
                hint='Choose on_error="raise" or on_error="stop_recording".',
                field="on_error",
            )
        if budget is None and steps is not None:
            raise BadInput("steps= needs budget=.", hint='For example budget="200 GB".', field="steps")
        if budget is not None and (not keys or sink is not Writer):
            what = "keys=False" if sink is Writer else "sink="
            raise BadInput(f"budget= cannot be combined with {what}.", hint="Leave one of them out.", field="budget")
        compiled = compiled_parts(model)
        model, optimizers = unwrapped_model(model), optimizers_of(optimizer)
        sharded = check_sharding(model, optimizers, ranks, resume)
        # Before the ranks come together: from then on the first of them may have begun the further run.
        resumed = resumption_of(self.path, resume)
        folder = self.path if resumed is None else resumed.path
        owners = Owners(optimizers, model)
        found = FoundLayers(model, owners, layers, keys and values, taps)
        selected, self.skipped = select(model, owners, layers, keys and values, taps, found)
        """`skipped`: layer -> why it is not recorded."""
        selected = [*taps, *selected]
        if resumed is not None:
            selected += found.recall(resumed.layers_beside(selected))
        check_blocks(model, selected)
        if keys and values:
            check_followed(optimizers, selected)
        there, routed = found.told(spaces or {}, [routed] if isinstance(routed, str) else list(routed))
        Spaces(selected, there, routed)  # raises for what they cannot be
        self._ranks = shard_of(rank, ranks, alone=not sharded)
        try:
            if self._ranks is not None:
                self._ranks.check_folder(folder)
                sink = self._ranks.writer if sink is Writer else sink
            elif sink is Writer:
                check_new_folder(folder)
            budget_plan = None if budget is None else BudgetPlan.of(budget, keep, steps, seed, self.path, self._ranks)
            if budget_plan is not None:
                budget_plan.check(model, optimizers)
        except BaseException:
            leave(self._ranks)
            raise
        plan = Plan(
            model, owners, folder, selected, self.skipped, sink, there, routed, keys, dict(label_names or {}),
            resumed, self._ranks, compiled, budget_plan, sharded,
        )  # fmt: skip
        self._training = RecordedTraining(plan, found, on_error == "raise", keys and values)
        self._says = not (quiet or os.environ.get("DUALFORM_QUIET") or (self._ranks and self._ranks.number))
        self._state = "new"
        self._failed = False
        self._refused: BadInput | None = None
        """What was refused last outside of a step."""
        self._query_sets = set[str]()
        """Names of those that were taken."""
        """Whether the last step was refused, or raised something."""

    @property
    def steps(self) -> int:
        """Steps recorded so far, of this run."""
        return self._training.steps

    @property
    def summary(self) -> Summary:
        """What is recorded, as it stands now; its text is the table that was said at the start."""
        recording = self._training.recording
        return summary_of(self._training.plan, None if recording is None else recording.batches.bytes_a_step)

    def __enter__(self) -> Recorder:
        if self._state != "new":
            raise RecordingError(
                "A recorder records one training and cannot be entered again.",
                hint="Make another dualform.Recorder with another folder.",
            )
        self._state, self._process = "open", OwnProcess()
        try:
            self._training.attach()
            self._say(str(self.summary))
        except BaseException:
            self._state = "closed"
            self._training.detach()
            leave(self._ranks)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state = "closed"
        if not self._process.here:
            return
        self._training.detach()
        if self._training.stopped:
            return
        try:
            if self._training.ongoing is not None:
                self._training.close(None if error is self._refused else error)
            elif error is None and not self._failed:
                self._tell_empty()
        finally:
            leave(self._ranks)

    @contextmanager
    def step(
        self,
        dataset: str | Sequence[str] | None = None,
        label: Any = None,
        sample: Any = None,
        position: Any = None,
        mask: Any = None,
        *,
        at: Mapping[str, Mapping[str, Any]] | None = None,
        batch_dim: int | Mapping[str, int] | None = None,
        **columns: Any,
    ) -> Iterator[Step]:
        """Record what the training does inside as one step: one batch, forward, backward and, if it is due, update.

        Each argument is a column: one value, one for each row [B], or one for each token [B, L…] where one space of the
        step has tokens; the first axis of an entry is always the batch. `mask` bool[B, L] is true for real tokens; the
        others become no slots. Without `position`, a token's is its place in the sequence. `at`: space -> columns of
        its slots alone, which may also be said with `.at(space, …)` of what this yields. An update after leaving,
        before the next step, belongs to this step.

        `batch_dim`: which axis of the keys of layers with tokens is the batch, 0 or 1: of all, or by name of a space or
        layer. It need not be said where modules tell it (batch_first), or where it is the first and no batch is square.
        Once known it stays.

        Every call of a layer whose gradient arrives is slots of its own. A step with NaN or infinity in a key or error
        signal is not recorded, nor one that raises. Raises BadInput for a column that does not fit, and what writing
        an earlier step failed with.
        """
        self._require_open("step")
        if self._training.collector.step is not None:
            raise RecordingError(
                f"Step {self.steps} has not ended.", hint="Leave its `with recorder.step(...)` before the next one."
            )
        self._failed = True
        before = self._training.ongoing
        record = self._training.begin_step(
            dataset=dataset, label=label, sample=sample, position=position, mask=mask, at=at, batch_dim=batch_dim,
            columns=columns,
        )  # fmt: skip
        try:
            yield Step(record)
        except BaseException:
            self._training.end_step(record, failed=True)
            raise
        self._training.end_step(record, failed=False)
        self._failed = False
        if before is None and (recording := self._training.ongoing) is not None:
            yet = f"; no gradient reached {listed(recording.unreached)} yet" if recording.unreached else ""
            if unseen := self._training.unseen:
                yet += f"; no product was seen with {listed(unseen)}, and later ones are not recorded"
            self._say(f"dualform: {readable(recording.batches.bytes_a_step or 0)} a step{yet}")

    def flush(self) -> None:
        """Returns once every finished step is on disk: a training whose checkpoint is saved now can be resumed here.
        Inside a step it can be once that step is over; of the weights that its update has made then.

        Raises what went wrong with writing.
        """
        self._require_open("flush")
        self._training.flush()

    def query_set(
        self,
        name: str,
        inputs: Inputs = None,
        label: Any = None,
        batch_size: int = 1024,
        batch_dim: int = 0,
        loss: Loss | None = None,
        previews: PreviewSet | None = None,
        **named: Any,
    ) -> None:
        """Store test examples as queries under a name, with the model's answers as it is now.

        `inputs` [n, …], several such as a tuple, or by name as a dict or what a tokenizer returns, are the model's
        arguments, and so is what is `named` here in their place; their examples lie along `batch_dim`, and what has no
        such axis is the same for all. The model runs in eval mode, without gradients. A layer that sees tokens gets one
        query for each, [n * L, d_in], an example's tokens after one another; one that is called several times gets
        those of its first call. Of several ranks the first one's are stored; where they hold parts of a model that
        `fully_shard` parted, all of them take the query set.

        With `loss`, the gradients of the examples' own losses are stored too, for questions with score="gradient": what
        it makes of the model's answers and `label`, a number for each example, as cross_entropy(…, reduction="none")
        does. `label` is then whatever it takes, and is stored where it is integers.

        `previews`: what the examples look like, one after another, for memory.previews(…, query_set=name).

        Raises BadInput for a name that is taken, and for a loss that is not one finite number an example;
        RecordingError before the first recorded step. What is refused changes nothing, and if BadInput leaves the
        recorder, the memory has come to its end there.
        """
        self._require_open("query_set")
        with self._refusing():
            check_name(name, self._query_sets)
            self._query_set(name, inputs, label, batch_size, batch_dim, loss, previews, named)
            self._query_sets.add(name)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Whatever is refused inside is no failure of the training."""
        try:
            yield
        except BadInput as error:
            if self._training.collector.step is None:  # else the step that it leaves is not recorded
                self._refused = error
            raise

    def _query_set(
        self,
        name: str,
        inputs: Inputs,
        label: Any,
        batch_size: int,
        batch_dim: int,
        loss: Loss | None,
        previews: PreviewSet | None,
        named: dict[str, Any],
    ) -> None:
        if named and inputs is not None:
            raise BadInput(
                "inputs cannot be passed both as one argument and by name.",
                hint="Put all of them into one dict: query_set(name, {…}).",
                field="inputs",
            )
        inputs = named or inputs
        training = self._training
        others = self._ranks is not None and self._ranks.number > 0
        if training.stopped or (others and not training.plan.sharded):
            return
        if training.ongoing is None:
            why = f"Call query_set after the first step. So far: {training.why_empty}."
            raise RecordingError("A query set cannot be stored before the first recorded step.", hint=why)
        traced = None
        if loss is not None:
            if training.plan.sharded:
                raise BadInput(
                    "loss= does not work for a model that fully_shard has split.",
                    hint="Call memory.gradients with the whole model after the training.",
                    field="loss",
                )
            traced = Examples(f"query set {name!r}", inputs, label, loss, batch_dim)
        labels = labels_of(label, others=traced is not None)
        if previews is not None:
            check_examples(previews, Arguments(inputs, batch_dim).examples)
        training.query_set(
            name, inputs, labels, batch_size, batch_dim, store=not others, traced=traced, preview_set=previews
        )

    def previews(self, dataset: str | None, previews: PreviewSet) -> None:
        """Store what the samples of a dataset look like, for memory.previews(…): a dualform.PreviewSet.images(…),
        .texts(…) or .table(…). `dataset` and the preview set's samples are what `step` says of them; None for steps
        without a dataset.

        It is encoded while the training waits; one that is given before the first step is stored when that is over, and
        then a sample that cannot be stored is warned of. Of several ranks the first one's is stored. When the training
        is over, preview_set.store(path, dataset) does the same. Raises BadInput for a dataset that has a preview set,
        and for a sample that cannot be stored.
        """
        self._require_open("previews")
        with self._refusing():
            if not isinstance(previews, PreviewSet):
                raise BadInput(
                    f"previews must be a dualform.PreviewSet, not {type(previews).__name__}.",
                    hint="Make one with dualform.PreviewSet.images(…), .texts(…) or .table(…).",
                    field="previews",
                )
            if self._ranks is None or self._ranks.number == 0:
                self._training.preview_set(dataset_name(dataset) or None, previews)

    def _run_out(self) -> None:
        self._training.run_out()

    def _say(self, text: str) -> None:
        if self._says:
            tell(text)

    def _tell_empty(self) -> None:
        """A training came to its end and left no memory."""
        empty = f"Nothing was recorded in {self.path}"
        warnings.warn(f"{empty}: {self._training.why_empty}.", RuntimeWarning, stacklevel=3)

    def _require_open(self, what: str) -> None:
        if self._state != "open":
            raise RecordingError(
                f"recorder.{what} was called outside `with recorder`.", hint="Call it inside `with recorder:`."
            )
        if not self._process.here:
            raise RecordingError(
                f"recorder.{what} was called in a fork of the recording process.",
                hint="Call it only in the parent, or make another dualform.Recorder in the child.",
            )
