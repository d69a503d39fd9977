"""A training run a second time, to answer questions about it without ever storing a key (paper, appendix D).

with dualform.Recorder(model, optimizer, "runs/lm", keys=False) as recorder: …      # once, with recorder.step(…)
questions = [dualform.TopK("lstm", queries), dualform.GroupSum("lstm", queries, by=("position",))]
with dualform.Rerun(model, optimizer, "runs/lm", questions) as rerun: …           # again, with rerun.step(…)
hits, sums = rerun.answers()

An Influence among the questions is answered by a ledger (second_recording.py), which does take keys for as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TypeAlias

from torch import nn
from torch.optim import Optimizer

from dualform.answers import GroupSums, Hits, Ledger, Scan
from dualform.errors import BadInput, NotFound, RecordingError
from dualform.influence.influence import Influence
from dualform.query.engine import CACHE_BYTES
from dualform.query.resolved import resolve
from dualform.query.score import backends
from dualform.query.view import View
from dualform.questions import GroupSum, TopK
from dualform.record.recorder import Recorder
from dualform.record.taps import Tap
from dualform.rerun.first_training import FirstTraining
from dualform.rerun.running_best import RunningBest
from dualform.rerun.running_sums import RunningSums
from dualform.rerun.second_recording import SecondRecording
from dualform.rerun.sink import RerunSink
from dualform.rerun.window import KeyBuffer
from dualform.store.header import Header
from dualform.store.runs import opened

WINDOW_BYTES = 128 << 20

Question: TypeAlias = TopK | GroupSum | Influence
Answer: TypeAlias = Hits | GroupSums | Ledger


class Rerun(Recorder):
    """Answers queries during a second run of a training that was recorded with keys=False.

    Use it in place of the `Recorder`, in the same training from its start. The memory does not change.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        path: str | PathLike[str],
        questions: Sequence[Question],
        *,
        spaces: Mapping[str, str] | None = None,
        routed: str | Sequence[str] = (),
        taps: Sequence[Tap] = (),
        window_bytes: int = WINDOW_BYTES,
        folder: str | PathLike[str] | None = None,
    ) -> None:
        """Choose the queries before the second run.

        - `path`: a memory recorded with keys=False.
        - `questions`: `TopK`, `GroupSum` and `Influence` values. The queries of `TopK` and `GroupSum` are vectors or
          examples of the memory's query sets.
        - `spaces`, `routed`, `taps`: as passed to the Recorder.
        - `window_bytes`: bytes of keys held at once, over all queried layers.
        - `folder`: where keys and values for `Influence` are written until `answers`; None for a temporary folder.

        Raises BadInput for a memory that cannot be rerun, RecordingError if the model lacks its layers, and the errors
        of each query. `step` raises RecordingError, with step and layer, if the inputs differ from the first run.
        """
        memory = opened(path)
        self._first = FirstTraining(memory)
        backend = backends.choose("numpy")
        view = View(memory, backend, CACHE_BYTES)
        self._questions = list(questions)
        self._running = [_running(view, asked) for asked in questions if not isinstance(asked, Influence)]
        influences = [asked for asked in questions if isinstance(asked, Influence)]
        self._again = SecondRecording(view, model, influences, folder) if influences else None
        resolved = [running.resolved for running in self._running]
        self._scan = Scan(memory.commits, backend=f"rerun, {backend.name}")
        self._slots = [memory.entries(one.layer.name).count for one in resolved]
        asked = {one.layer.name: one.layer for one in resolved}
        self._buffers = [
            KeyBuffer(
                memory,
                layer,
                [running for one, running in zip(resolved, self._running, strict=True) if one.layer.name == name],
                backend,
                window_bytes // len(asked),
            )
            for name, layer in asked.items()
        ]
        self._reran: RerunSink | None = None
        try:
            own = {tap.name for tap in taps}
            layers = [name for name in memory.layers if name not in own]
            super().__init__(
                model, optimizer, path, layers, keys=bool(influences), spaces=spaces, routed=routed, taps=taps,
                quiet=True, sink=self._open_rerun,
            )  # fmt: skip
        except NotFound as error:
            raise RecordingError(
                f"This is not the model that was recorded: {error.message}", hint="Pass the model that was recorded."
            ) from None

    def _open_rerun(self, header: Header) -> RerunSink:
        forms = {tap.name: tap.key_form for tap in self._training.plan.taps}
        writer = None if self._again is None else self._again.writer(header)
        self._reran = RerunSink(header, self._first, self._buffers, forms, writer)
        return self._reran

    def _tell_empty(self) -> None:
        """`answers` does."""

    def answers(self) -> list[Answer]:
        """The results, in the order of the queries, as if the memory had stored its keys.

        Raises RecordingError before the training has been rerun to its end, and for `Influence` the errors of
        `dualform.ledger`.
        """
        if self._reran is None or not self._reran.complete:
            raise RecordingError(
                "The training has not been rerun to its end.",
                hint="Call rerun.answers() after `with rerun:` has ended without an error.",
            )
        ledgers = iter(self._again.ledgers() if self._again is not None else [])
        running = iter(zip(self._running, self._slots, strict=True))
        return [
            next(ledgers) if isinstance(asked, Influence) else self._ran(*next(running)) for asked in self._questions
        ]

    def _ran(self, running: RunningBest | RunningSums, slots: int) -> Hits | GroupSums:
        return running.answer(Scan(self._scan.snapshot, slots, backend=self._scan.backend))


def _running(view: View, question: TopK | GroupSum) -> RunningBest | RunningSums:
    """The answer to a question, to grow with the training. Slots and their columns stand in the first run's tables, so
    mask and groups are settled before a key is seen. Raises what an engine raises, and BadInput for another kind.
    """
    if isinstance(question, TopK | GroupSum) and question.target is not None:
        raise BadInput(
            'A rerun cannot answer score="contribution": contributions are known only at the end of a training.',
            hint="Record the training with keys=True and values=True, and call dualform.open(path).",
            field="questions",
        )
    if isinstance(question, TopK):
        return RunningBest(resolve(view, question))
    if isinstance(question, GroupSum):
        return RunningSums(resolve(view, question))
    raise BadInput(
        f"A rerun cannot answer {type(question).__name__}.",
        hint="Pass TopK, GroupSum or Influence. Outputs need a memory with keys and values.",
        field="questions",
    )
