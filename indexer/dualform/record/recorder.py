"""The recorder: watches a training and writes its memory.

    recorder = dualform.Recorder(model, optimizer, "runs/mnist")
    with recorder:
        for x, y, index in loader:
            with recorder.step(dataset="mnist", label=y, sample=index):
                loss = cross_entropy(model(x), y)
                optimizer.zero_grad(); loss.backward(); optimizer.step()

The training comes out bit for bit as it would without the recorder.

What may be said of a step while it runs.

Ranks of which one has fewer batches than another: torch.distributed.algorithms.Join lets it answer the others.

    with recorder, Join([model, recorder]):
        for x, y in loader: ...

Once a rank has none left, gradients go on being averaged with its zeros; but its weights stand still until the end, and
what is logged on it ends. So the ranks part then, at once, and the record says why.
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

import torch
from torch import distributed, nn
from torch.distributed.algorithms.join import JoinHook
from torch.optim import Optimizer

from dualform.errors import BadInput, RecordingError
from dualform.record.discovery.found_layers import FoundLayers
from dualform.record.discovery.selection import compiled_parts, select
from dualform.record.examples import Examples, Loss
from dualform.record.hooks import HookController
from dualform.record.query_sets import Arguments, Inputs, check_examples, labels_of
from dualform.record.ranks import TrainingShard, check_sharding, leave, shard_of, unwrapped_model
from dualform.record.session import RecordingSession
from dualform.record.setup.budget import BudgetPlan, whole_steps
from dualform.record.setup.optimizers import Owners, check_followed, optimizers_of
from dualform.record.setup.plan import Plan, check_blocks
from dualform.record.setup.resume import resumption_of
from dualform.record.setup.summary import DiskForecast, Summary, listed, summary_of, tell
from dualform.record.sink import Sink
from dualform.record.slots.spaces import Spaces
from dualform.record.slots.step_record import StepRecord
from dualform.record.taps import Tap
from dualform.store.batch import Header
from dualform.store.files.ram_budget import readable
from dualform.store.locks import OwnProcess
from dualform.store.previews.preview_set import PreviewSet
from dualform.store.previews.stored_previews import dataset_name
from dualform.store.query_sets import check_name
from dualform.store.writing.writer import Writer, check_new_folder


class _RunOut(JoinHook):
    """In the place of each batch that this rank has not."""

    def __init__(self, run_out: Callable[[], None]) -> None:
        self.main_hook = run_out  # type: ignore[method-assign]


class Step:
    """A step while it runs, as `recorder.step(...)` yields it: what may be said after its forward pass has begun."""

    def __init__(self, record: StepRecord | None) -> None:
        """`record`: None where recording has stopped."""
        self._record = record

    @property
    def updated(self) -> bool:
        """Whether an optimizer has made an update of it."""
        return self._record is not None and bool(self._record.updated)

    def continues(self, earlier: Step) -> None:
        """Say that it is of the same batch as the step before it: a gradient of that one's forward calls which arrives
        now belongs to this one. So a generator that ran before the discriminator's update is recorded with its own.

        Raises RecordingError where `earlier` is another step than the one that ran right before.
        """
        if self._record is not None and earlier._record is not None:
            self._record.goes_on(earlier._record)

    def at(self, space: str, **columns: Any) -> None:
        """Say columns of the slots of one space, as `step(at={space: {…}})` does: one value, one for each row, or one
        for each token [B, L…]; `position` and `mask` too, and `row` where the model chooses the rows.

        To a routed space it is said before each call: the k-th saying of a column, or of `row` and `position`, belongs
        to the space's k-th call of the step that a gradient reaches. One value that is said once holds for all calls.
        Where there are not as many sayings as calls, a first step is refused, and later nothing of it is recorded,
        with a warning.

        Raises BadInput for what is no column, RecordingError once the step's update has been made.
        """
        if self._record is None:
            return
        if self._record.settled:
            raise RecordingError(
                f"step.at was called after the update of step {self._record.step}.",
                hint="Call it between the forward pass and optimizer.step().",
            )
        self._record.metadata.say(space, columns)


class Recorder:
    """Records the training of one model into a folder, the memory.

    Use it as a context manager. When its `with` block ends, the memory is complete and all hooks are removed. Recording
    does not change the training: on a CPU, its weights are the same bit for bit.
    """

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
        keep_random: bool = False,
    ) -> None:
        """Choose the model, its optimizers, the folder and what to record.

        - `model`: the network. It may be wrapped in DistributedDataParallel.
        - `optimizer`: a torch optimizer, or a list of all that update the model, each with its own parameters. They may
          step at different times. If a backward pass follows the update of another optimizer, put it into its own
          `step`. If its forward pass ran in the previous step, that new step `continues` it.
        - `path`: the folder, new or empty.
        - `layers`: names or patterns of the layers to record; None for all.
        - `values`: store error signals, which outputs and weights need.
        - `label_names`: the names of labels 0, 1, … by dataset.
        - `keys`: False stores a digest of each step in place of keys and values. A `Rerun` then answers queries.
        - `spaces`: layer name or pattern -> slot space. By default keys [B, d] are slots of "sample", and keys [B, L…,
          d] slots of "token".
        - `routed`: names or patterns of layers whose rows the model chooses, such as experts. Each has a separate
          space. Its slots know their rows only if you pass them with `step(at=…)`.
        - `taps`: taps of layers that are not modules.
        - `on_error`: "raise" ends the training if writing fails, a column stops fitting its batches, or a hook fails.
          "stop_recording" warns once and lets the training go on unrecorded; the older name "warn" does the same. The
          first step always raises. Steps that were already stored remain a valid memory.
        - `quiet`: do not print the summary to stderr. `DUALFORM_QUIET=1` does the same. Warnings stay.
        - `sink`: makes the object that takes the batches on its own thread, in place of the writer of the store.

        - `keep_random`: store the state of torch's random number generators at the beginning of each step, about 5 kB.
          `adjoint` and `retrain` need it for a network with dropout, or a step that draws random numbers.

        Several processes:

        - `rank`, `ranks`: the number of this process and the number of processes, after init_process_group. Every rank
          makes a recorder with the same `path` and writes its own slots. If something other than torch.distributed
          joins the processes, pass a TrainingShard as `ranks`.
        - A model split by `fully_shard` can be recorded. Make the optimizer after `fully_shard` and the recorder after
          both. Leave the recorder before destroy_process_group.
        - If ranks have different numbers of batches, train under torch's `Join([model, recorder])`.

        Resuming:

        - `resume`: True continues the memory in `path` from a checkpoint. Load the model and the optimizers before the
          first step. The recorder must have been flushed when the checkpoint was saved. It recognises that moment by
          the bits of the weights and buffers; or pass the number of steps. Later steps of the earlier run are dropped.
          If `path` is empty, a new memory begins.

        Limiting the size:

        - `budget`: bytes on disk, such as 200_000_000_000 or "200 GB". Ranks share it equally. If the slots do not fit,
          the recorder keeps a random share of the samples in all layers. Sums and hits then cover only this share and
          report it. Outputs and weights are exact only before the first step that lacks slots. Parameters outside the
          recorded layers are dropped first.
        - `keep`: "samples", or "steps" to keep whole steps of the recorder instead.
        - `steps`: the planned number of steps, of all runs. With it, the first step reports the size of the whole run
          and warns if the disk has less room. It also sets the share of a budget, which is halved whenever it proves
          too large. Without `steps`, the share is halved whenever half of the remaining budget is used.
        - `seed`: seeds the choice of samples.

        Raises AlreadyExists if `path` is not empty, NotFound if a pattern does not match, and BadInput for options that
        do not fit together. Here and in the first step, it raises RecordingError if the model cannot be recorded or
        resumed.
        """
        self.path = Path(path).absolute()  # the process may go to another folder
        if on_error not in ("raise", "stop_recording", "warn"):
            raise BadInput(
                f"Unknown on_error {on_error!r}.",
                hint='Choose on_error="raise" or on_error="stop_recording".',
                field="on_error",
            )
        planned, writes = whole_steps(steps), sink is Writer
        if budget is not None and (not keys or sink is not Writer):
            what = "keys=False" if sink is Writer else "sink="
            raise BadInput(f"budget= cannot be combined with {what}.", hint="Leave one of them out.", field="budget")
        if keep_random and ranks != 1:
            raise BadInput(
                "keep_random= cannot be combined with ranks=.", hint="Leave one of them out.", field="keep_random"
            )
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
            resumed, self._ranks, compiled, budget_plan, sharded, keep_random,
        )  # fmt: skip
        self._controller = HookController(plan, found, on_error == "raise", keys and values)
        self._says = not (quiet or os.environ.get("DUALFORM_QUIET") or (self._ranks and self._ranks.number))
        self._forecast: DiskForecast | None = None
        """None where no files are written, and of other ranks than the first."""
        if writes and not (self._ranks and self._ranks.number):
            most = None if budget_plan is None else budget_plan.rule.budget * budget_plan.ranks
            self._forecast = DiskForecast(self.path, planned, getattr(self._ranks, "count", 1), most)
        self._state = "new"
        self._failed = False
        """Whether the last step was refused, or raised something."""
        self._refused: BadInput | None = None
        """What was refused last outside of a step."""
        self._query_sets = set[str]()
        """Names of those that were taken."""

    @property
    def steps(self) -> int:
        """The number of steps recorded in this run so far."""
        return self._controller.steps

    @property
    def summary(self) -> Summary:
        """The current summary: recorded and skipped layers, possible queries, size. Its text is the table printed at
        the start.
        """
        session = self._controller.session
        return summary_of(self._controller.plan, None if session is None else session.writer.bytes_a_step)

    def __enter__(self) -> Recorder:
        if self._state != "new":
            raise RecordingError(
                "A recorder records one training and cannot be entered again.",
                hint="Make another dualform.Recorder with another folder.",
            )
        self._state, self._process = "open", OwnProcess()
        try:
            self._controller.attach()
            self._say(str(self.summary))
        except BaseException:
            self._state = "closed"
            self._controller.detach()
            leave(self._ranks)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state = "closed"
        if not self._process.here:
            return
        self._controller.detach()
        if self._controller.stopped:
            return
        try:
            if self._controller.ongoing is not None:
                self._controller.close(None if error is self._refused else error)
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
        """Record one step: a batch with its forward and backward pass and, if due, its update.

        - Each argument is a column of the slots: one value, one for each row [B], or one for each token [B, L…]. The
          first axis is always the batch.
        - `dataset`, `label`, `sample`: text, integers and integers. Any other name makes a column that you can filter
          and group by.
        - `position`: the position of each token; by default its place in the sequence.
        - `mask`: bool[B, L], True for real tokens. Padding becomes no slots.
        - `at`: space -> columns for the slots of only this space. You can also call `.at(space, …)` on the object that
          `with` returns.
        - `batch_dim`: the axis of the batch in layers with tokens, 0 or 1; for all of them, or by name of a space or
          layer. Pass it if no module has batch_first and a batch can be square. Once known it stays.

        Every call of a layer that a gradient reaches adds slots. An update after the block, before the next step,
        belongs to this step. A step is not recorded if it raises, or if a key or error signal contains NaN or infinity.

        Raises BadInput for a column that does not fit, RecordingError outside the recorder, and any error of writing an
        earlier step.
        """
        self._require_open("step")
        if self._controller.collector.step is not None:
            raise RecordingError(
                f"Step {self.steps} has not ended.", hint="Leave its `with recorder.step(...)` before the next one."
            )
        self._failed, first = True, self._controller.ongoing is None
        with self._controller.step(
            dataset=dataset, label=label, sample=sample, position=position, mask=mask, at=at, batch_dim=batch_dim,
            columns=columns,
        ) as record:  # fmt: skip
            yield Step(record)
        self._failed = False
        if (session := self._controller.ongoing) is not None and not self._controller.stopped:
            self._say_size(session, first)

    def _say_size(self, session: RecordingSession, first: bool) -> None:
        """A step is over, the `first` of all or a later one."""
        if first:
            yet = f"; no gradient reached {listed(session.unreached)} yet" if session.unreached else ""
            if unseen := self._controller.found.unseen:
                yet += f"; no product was seen with {listed(unseen)}, and later ones are not recorded"
            taken, resumed = session.writer.bytes_a_step or 0, self._controller.plan.resumed
            done = 0 if resumed is None else resumed.first_step
            whole = "" if self._forecast is None else self._forecast.first(taken, done)
            self._say(f"dualform: {readable(taken)} a step{whole}{yet}")
        elif self._forecast is not None and (told := self._forecast.later(self.steps)):
            self._say(f"dualform: {told}")

    def flush(self) -> None:
        """Wait until every finished step is on disk. Call it when you save a checkpoint, so that you can resume there.

        Inside a step, the moment to resume from is the end of that step. Raises any error of writing.
        """
        self._require_open("flush")
        self._controller.flush()

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
        """Store test examples under a name, with the inputs of each layer and the outputs of the current model.

        - `inputs`: [n, …], the argument of the model; a tuple of several; or a dict or tokenizer output of named ones.
          You can also pass named inputs as keyword arguments. Examples lie along `batch_dim`; an input without this
          axis is the same for all examples.
        - `label`: integers, one for each example or token: [n], [n, L], or with batch_dim=1 [L, n]. With `loss`,
          anything that `loss` takes; it is stored only if it is integers.
        - `batch_size`: the number of examples in one forward pass.
        - `loss`: a function (outputs, label) that returns one number for each example, such as cross_entropy(…,
          reduction="none"). It stores the gradients for queries with score="gradient".
        - `previews`: a `PreviewSet` of the examples, for `memory.previews(…, query_set=name)`.

        The model runs in eval mode. A layer that sees tokens gets one query for each token, [n * L, d_in], example
        after example. Outputs are stored if the model returns [n, outputs], or [n, L, outputs] with L tokens for each
        example. Above 32 MiB, outputs of tokens are summarized (`QuerySet.summary`); a warning says if they are left
        out, and why. A layer that is called several times gets the queries of its first call. With several ranks, rank
        0 stores the query set. If `fully_shard` has split the model, call it on every rank.

        Raises BadInput for a name that exists and for a loss that is not one finite number for each example;
        RecordingError before the first recorded step. A rejected call changes nothing.
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
            if self._controller.collector.step is None:  # else the step that it leaves is not recorded
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
        inputs, controller = named or inputs, self._controller
        if controller.stopped or (controller.plan.number and not controller.plan.sharded):
            return
        if controller.ongoing is None:
            why = f"Call query_set after the first step. So far: {controller.why_empty}."
            raise RecordingError("A query set cannot be stored before the first recorded step.", hint=why)
        if loss is not None and controller.plan.sharded:
            raise BadInput(
                "loss= does not work for a model that fully_shard has split.",
                hint="Call memory.gradients with the whole model after the training.",
                field="loss",
            )
        traced = None if loss is None else Examples(f"query set {name!r}", inputs, label, loss, batch_dim)
        examples = Arguments(inputs, batch_dim).examples
        labels = labels_of(label, traced is not None, batch_dim, examples)
        if previews is not None:
            check_examples(previews, examples)
        controller.query_set(name, inputs, labels, batch_size, batch_dim, traced, previews)

    def previews(self, dataset: str | None, previews: PreviewSet) -> None:
        """Store images, texts or table rows of the samples of a dataset, for `memory.previews(…)`.

        - `dataset`: the name passed to `step`; None for steps without a dataset.
        - `previews`: a `PreviewSet`, whose `samples` are the numbers passed to `step`.

        The training waits while previews are encoded. If you call it before the first step, they are stored after that
        step, and a sample that cannot be stored gives a warning. With several ranks, rank 0 stores them. After the
        training, call `preview_set.store(path, dataset)` instead.

        Raises BadInput if the dataset already has previews, or if a sample cannot be stored.
        """
        self._require_open("previews")
        with self._refusing():
            if not isinstance(previews, PreviewSet):
                raise BadInput(
                    f"previews must be a dualform.PreviewSet, not {type(previews).__name__}.",
                    hint="Make one with dualform.PreviewSet.images(…), .texts(…) or .table(…).",
                    field="previews",
                )
            if not self._controller.plan.number:
                self._controller.preview_set(dataset_name(dataset) or None, previews)

    def join_hook(self, **_: Any) -> JoinHook:
        """For torch's Join: replaces the missing batches of this rank."""
        return _RunOut(self._controller.run_out)

    @property
    def join_device(self) -> torch.device:
        """For torch's Join: the device of its tensors."""
        return torch.device("cpu")

    @property
    def join_process_group(self) -> Any:
        """For torch's Join: the process group of the training."""
        return distributed.group.WORLD

    def _say(self, text: str) -> None:
        if self._says:
            tell(text)

    def _tell_empty(self) -> None:
        """A training came to its end and left no memory."""
        empty = f"Nothing was recorded in {self.path}"
        warnings.warn(f"{empty}: {self._controller.why_empty}.", RuntimeWarning, stacklevel=3)

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
