"""The engine: answers questions about one memory, in process.

    memory = dualform.open("runs/mnist")
    memory.topk("0", "test-mnist/17", k=10, where="dataset <> 'fashion-mnist'")

Shapes: n slots, d_in and d_out of a layer. Safe to use from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Hits
from dualform.errors import BadInput, Cancelled, Forked
from dualform.kernels.workers import subnormal_numbers
from dualform.methods import Answers
from dualform.query import needs, slots
from dualform.query.bounds import COUNT_BYTES, HIT_BYTES, UNBOUNDED, QuestionBounds
from dualform.query.resolved import Q, Resolved, resolve
from dualform.query.score import backends
from dualform.query.search.codes import CodesCache
from dualform.query.search.top_k import distinct_hits, top_k
from dualform.query.slots import counted as counted_queries, stored_query_set
from dualform.query.sql.process import Sql
from dualform.query.sums.group_sum import group_sum
from dualform.query.view import Check, Counts, Tally, View, counted
from dualform.questions import (
    Contribution,
    Distribution,
    GradientSum,
    GradientTopK,
    GroupSum,
    Inventory,
    LayerQuestion,
    MaskCancellation,
    NetworkWeights,
    Output,
    Placebo,
    PreviewLookup,
    QuerySetLookup,
    Question,
    SlotLookup,
    SqlStatement,
    TopK,
    Verification,
)
from dualform.store.files.ram_budget import RamBudget, anonymous_bytes, bytes_of, resident_bytes
from dualform.store.files.segment import SegmentCache
from dualform.store.files.startup import return_large_blocks
from dualform.store.locks import OwnProcess
from dualform.store.reading.runs import Runs, opened, opened_again
from dualform.store.reading.snapshot import Snapshot

A = TypeVar("A")
CACHE_BYTES = 1 << 30
Bound: TypeAlias = int | str | RamBudget
"""Bytes, a text as "2 GB", or a budget that several memories share."""
_FEWER_QUERIES = "Ask with fewer queries at once, or by fewer groups"
_FEWER_EXAMPLES = "Ask with fewer examples at once, or by fewer groups"
StopSignal: TypeAlias = Callable[[], bool]
"""Returns True once nobody waits for the answer any more."""


def open_memory(
    path: str | Path | Sequence[str | Path],
    backend: str | None = None,
    cache_bytes: int = CACHE_BYTES,
    held_bytes: int | None = None,
    ram: Bound | None = None,
    whole_process: bool = False,
) -> Engine:
    """Open the memory in a folder, or the runs of a resumed training in several folders.

    - `path`: the folder, or a list of folders in the order of the runs. Steps and slots count on from run to run, and
      the column `run` counts from 0.
    - `backend`: scores keys: int8, numpy, torch, faiss, torch-cuda or faiss-gpu. None picks the best for the machine.
      All give the same results.
    - `cache_bytes`: the limit for filters, key sums and rebuilt weights that are kept between queries.
    - `held_bytes`: the limit for keys and values in RAM; None for half of the machine's RAM.
    - `ram`: one limit for all of it, including the work on a query: bytes, a text such as "2 GB", or a RamBudget that
      several engines share. It overrides the two limits above. A query that needs more is refused.
    - `whole_process`: count all resident memory of the process against `ram`, including loaded libraries.

    Raises NotAMemory or Damaged for the folder, BadInput for runs of different networks or too little RAM, and NotFound
    or MissingPackage for the backend.
    """
    runs = (path,) if isinstance(path, str | Path) else tuple(path) if isinstance(path, Iterable) else (path,)
    if not all(isinstance(run, str | Path) for run in runs):
        raise BadInput(
            f"path must be the folder of a memory, or a list of folders, not {path!r}.",
            hint='For example dualform.open("runs/digits").',
            field="path",
        )
    before = anonymous_bytes()
    budget = ram if isinstance(ram, RamBudget) else None
    if budget is None and ram is not None:
        budget = RamBudget.shared(bytes_of(ram, "ram"))
    if budget is not None and whole_process:
        return_large_blocks()
    segments = SegmentCache(held_bytes, budget)
    # Absolute, for the process may go to another folder.
    folders = [Path(one).absolute() for one in runs]
    found = opened(folders[0], segments) if isinstance(path, str | Path) else Runs.of(folders, segments)
    chosen = backends.choose(backend)
    if budget is not None:
        if whole_process:
            budget.leave(resident_bytes() + needs.SERVED, needs.least(found), resident_bytes)
        else:
            budget.leave(anonymous_bytes() - before, needs.least(found))
        if isinstance(chosen, backends.ScreenBackend):
            chosen.screen.codes = CodesCache(budget.most_bytes // 2, budget)
    engine = Engine(found, chosen, cache_bytes, segments, budget)
    bound = ram.given if isinstance(ram, RamBudget) else ram
    again = folders[0] if isinstance(path, str | Path) else folders
    engine._reopened = partial(open_memory, again, backend, cache_bytes, held_bytes, bound, whole_process)
    return engine


class Engine(Answers):
    """Answers queries about one memory in this process. `dualform.open` makes one.

    An engine cannot be used in a fork of the process that opened it, where every call raises Forked. A pickled engine
    opens the memory again, as of its last commit.
    """

    _reopened: Callable[[], Engine] | None = None
    """Opens the memory again; None of an engine that no `open_memory` made."""

    def __init__(
        self,
        memory: Snapshot,
        backend: backends.Backend,
        cache_bytes: int = CACHE_BYTES,
        segments: SegmentCache | None = None,
        budget: RamBudget | None = None,
    ) -> None:
        """Use `dualform.open` instead. `budget`: a RAM limit that all caches and queries share; None for separate
        limits.
        """
        self._backend, self._cache_bytes = backend, cache_bytes
        self._budget, self._segments = budget, segments
        """Key and value segments held in memory; committed segments never change, so a refresh keeps them."""
        self._refreshing = threading.Lock()
        self._process = OwnProcess()
        self.tally = Tally()
        self._see(memory)

    def _see(self, memory: Snapshot) -> None:
        self._seen = View(memory, self._backend, self._budget or self._cache_bytes, self.tally)
        self._sql = Sql(self._seen, **({} if self._budget is None else needs.sql_limits(self._budget.given)))

    @property
    def _view(self) -> View:
        """What questions are asked of. Raises Forked."""
        self._check_process()
        return self._seen

    def _check_process(self) -> None:
        """Raises Forked in a fork: any lock may be one that a thread of the parent's held."""
        if not self._process.here:
            raise Forked(
                f"The memory {self.path} was opened before this process was forked, and cannot be used in it.",
                hint="Call dualform.open in the child, such as in a DataLoader's worker_init_fn, or start processes "
                "by spawn: a pickled engine opens the memory again.",
            )

    @property
    def path(self) -> Path:
        """The folder of the memory; the first one of several."""
        return self._seen.snapshot.path

    @property
    def recording(self) -> bool:
        """Whether the memory is still being recorded, or was cut off, as in `info`."""
        return self._view.snapshot.recording

    def ask(self, question: Question[A], cancelled: StopSignal | None = None, bounds: QuestionBounds = UNBOUNDED) -> A:
        """The result of a query given as a value. `cancelled` is called between blocks of work.

        Raises Cancelled once `cancelled()` returns True, BadInput or BadMask for a query beyond `bounds`, and otherwise
        the errors of the method.
        """
        view = self._view.within(bounds)
        with subnormal_numbers():
            return cast("A", self._answer(_completed(view, question), view, _check(cancelled)))

    def counted(self, question: LayerQuestion[A]) -> LayerQuestion[A]:
        """The query with every token of its examples named, so that the number of queries is known. Raises NotFound and
        BadInput as `ask` does.
        """
        return counted_queries(self._view, cast("LayerQuestion[A]", _completed(self._view, question)))

    def _answer(self, question: Any, view: View, check: Check) -> Any:
        match question:
            case TopK() if question.distinct:
                return self._distinct(question, view, check)
            case TopK():
                best = self._resolved(question, view, check)
                with self._room(lambda: needs.of_top_k(best), check, _FEWER_QUERIES):
                    return top_k(best, check)
            case GroupSum():
                grouped = self._resolved(question, view, check)
                with self._room(lambda: needs.of_group_sum(grouped), check, _FEWER_QUERIES):
                    return group_sum(grouped, check)
            case SlotLookup():
                with self._room(lambda: needs.of_slots(view, len(question.ids)), check, "Look up fewer slots at once"):
                    return slots.slot_columns(view, question.ids, question.space)
            case SqlStatement():
                with self._room(lambda: needs.of_sql(self._sql), check):
                    return self._sql.run(question.text, check, view.bounds.answer_bytes)
            case QuerySetLookup():
                return stored_query_set(view, question.name, question.layer)
        # Loaded by the first who asks for them: scores need none of the rules and statuses, and are asked first.
        from dualform.query import info, network
        from dualform.query.distribution import distributions
        from dualform.query.gradients.answers import gradient_sum, gradient_top_k
        from dualform.query.gradients.scores import examples_of
        from dualform.query.placebo import placebos
        from dualform.query.slots import previews
        from dualform.query.weights import contributions, reconstruction

        match question:
            case Distribution():
                spread = self._resolved(question, view, check)
                with self._room(lambda: needs.of_distribution(spread), check, _FEWER_QUERIES):
                    return distributions(spread, check)
            case Output():
                asked = self._resolved(question, view, check)
                with self._room(lambda: needs.of_output(asked), check):
                    return network.output(asked, check)
            case Contribution():
                parts = self._resolved(question, view, check)
                with self._room(lambda: needs.of_contributions(parts), check, _FEWER_QUERIES):
                    return contributions.contributions(parts, check)
            case Placebo():
                tested = self._resolved(question, view, check)
                with self._room(lambda: needs.of_placebo(tested), check, _FEWER_QUERIES):
                    return placebos(tested, check)
            case GradientTopK() if question.distinct:
                return self._distinct(question, view, check)
            case GradientTopK():
                examples = examples_of(view, question.examples)
                with self._room(lambda: needs.of_gradients(view, question, examples), check, _FEWER_EXAMPLES):
                    return gradient_top_k(view, question, examples, check)
            case GradientSum():
                examples = examples_of(view, question.examples)
                with self._room(lambda: needs.of_gradients(view, question, examples), check, _FEWER_EXAMPLES):
                    return gradient_sum(view, question, examples, check)
            case NetworkWeights():
                with self._room(lambda: needs.of_weights(view), check):
                    return network.weights(view, question, check)
            case MaskCancellation():
                one = None if question.layer is None else view.snapshot.layer(question.layer)
                with self._room(lambda: needs.of_weights(view, one), check, "" if one else "Ask of one layer"):
                    return network.cancellation(view, question, check)
            case PreviewLookup():
                with self._room(needs.of_previews, check, "Ask for fewer samples at once"):
                    return previews(view, question)
            case Inventory():
                return info.describe(view)
            case Verification():
                with self._room(lambda: needs.of_weights(view), check):
                    return reconstruction.certify(view, check)
        raise BadInput(
            f"ask takes a query such as dualform.TopK, not {type(question).__name__}.",
            hint='For example ask(dualform.TopK("head", dualform.Vectors(x))).',
            field="question",
        )

    def _distinct(self, question: TopK | GradientTopK, view: View, check: Check) -> Hits:
        """One hit a sample; the longer lists that it is made of never leave the engine."""
        hits = distinct_hits(
            view,
            question,
            lambda plain: self._answer(plain, view.within(UNBOUNDED), check),
            lambda count: self._room(lambda: needs.of_distinct(question, count), check, _FEWER_QUERIES),
        )
        view.bounds.require(len(hits.ids), HIT_BYTES + COUNT_BYTES, "Ask with fewer queries at a time.", "k")
        return hits

    def _resolved(self, question: Q, view: View, check: Check) -> Resolved[Q]:
        layer = question.layer
        assert layer is not None, "a question that names no layer is given one first"
        with self._room(lambda: needs.of_resolving(view, layer), check):
            return resolve(view, question, check)

    def _room(self, needed: Callable[[], int], check: Check, instead: str = "") -> AbstractContextManager[None]:
        """Memory for the work inside. Raises BadInput where there will never be so much. `instead`: as `claimed`."""
        return nullcontext() if self._budget is None else self._budget.claimed(needed(), check, instead)

    def keys(self, layer: str, ids: Sequence[int] | NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """float32[n, d_in]: the inputs of a layer at some slots of its space, or at all of them, in slot order.

        Raises NotFound for a slot that the layer lacks.
        """
        return slots.keys(self._view, layer, ids)

    def values(self, layer: str, ids: Sequence[int] | NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """float32[n, d_out]: the recorded gradients by the outputs of a layer, unscaled. Raises as `keys`."""
        return slots.values(self._view, layer, ids)

    def key_rows(self, layer: str, ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[n]: the number of the stored key of each slot. Slots with equal numbers share a key.

        Raises as `keys`.
        """
        return slots.key_rows(self._view, layer, ids)

    def coefficients(
        self, layer: str, ids: Sequence[int] | NDArray[np.int64], at_step: int | None = None
    ) -> NDArray[np.float64]:
        """float64[n]: the factor that turns the value of each slot into its term of the layer's first weight.

        It is 0.0 for slots of steps from `at_step` on. Raises as `keys`, and BadInput for a step beyond the record.
        """
        return slots.coefficients(self._view, layer, ids, at_step)

    def refresh(self) -> bool:
        """Load the steps committed since the memory was opened. Returns True if there are any.

        Queries already running keep their snapshot.
        """
        self._check_process()
        with self._refreshing:
            seen = self._view.snapshot
            if not seen.moved():
                return False
            memory, before = opened_again(seen, self._segments), self._view
            sql = self._sql
            self._see(memory)
            sql.retire()
            before.cache.clear()
            return True

    def close(self) -> None:
        """End the process that runs SQL, and free the caches.

        You can still query a closed engine: it reads again, and SQL starts another process. In a fork this does
        nothing.
        """
        if not self._process.here:
            return
        self._sql.close()
        self._view.cache.clear()
        if self._segments is not None:
            self._segments.clear()
        if isinstance(self._backend, backends.ScreenBackend):
            self._backend.screen.clear()

    def counts(self) -> Counts:
        """Counts of the work done since the memory was opened. Raises Forked."""
        return counted(self._view, self._segments, self._budget)

    @property
    def answered_by(self) -> str:
        """The backend, and the compiled loops or why they are missing."""
        return backends.described(self._backend)

    def __reduce__(self) -> tuple[Callable[[], Engine], tuple[()]]:
        if self._reopened is None:
            raise TypeError("only an engine that dualform.open made can be pickled.")
        return self._reopened, ()

    def __repr__(self) -> str:
        return f"Engine({str(self.path)!r}, snapshot {self._seen.snapshot.commits}, {self._backend.name})"


def _check(cancelled: StopSignal | None) -> Check:
    def check() -> None:
        if cancelled is not None and cancelled():
            raise Cancelled("the question was given up before its answer was ready.")

    return check


def _completed(view: View, question: Any) -> Any:
    """A question that names no layer is about the one whose outputs are the network's; columns to group by are named as
    they were recorded, in whatever case they are written.
    """
    found = dict[str, Any]()
    if isinstance(question, LayerQuestion) and question.layer is None:
        from dualform.query.info import output_layer  # not needed by those that name theirs

        found["layer"] = output_layer(view)
    recorded = {name: name for space in view.snapshot.spaces for name in view.snapshot.columns(space)}
    recorded = {name.lower(): name for name in reversed(recorded)} | recorded
    for field in ("by", "distinct"):
        given = getattr(question, field, ())
        named = tuple(recorded.get(name, recorded.get(name.lower(), name)) for name in given)
        if named != given:
            found[field] = named
    return replace(question, **found) if found else question
