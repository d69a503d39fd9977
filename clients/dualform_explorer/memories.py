"""The memories that are served, by name, each opened when it is first needed; and what a reader gives in addition:
attribution scores of other packages, one number for each training sample and example.

bergson   the folder that its score command writes: info.json, scores.bin, and candidates.npy where it was given any
dattri    numpy.save("scores.npy", attributor.attribute(train, test).numpy()), and any such array
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from pathlib import Path
from threading import Lock
from time import sleep
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from dualform.answers import MemoryInfo
from dualform.errors import BadInput, NotFound, Overloaded, Unavailable
from dualform.methods import Answers
from dualform.questions import Inventory, PreviewLookup, Question, SlotLookup, TopK, Vectors
from dualform_explorer.preview_function import AnswersWithPreviews, PreviewFunction
from dualform_explorer.words import Words

A = TypeVar("A")
_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Pauses between attempts, in seconds."""
_MOST = 400
"""The number of cached answers, enough for some dozens of pages."""
_LARGE = 10_000
"""An answer with more hits, such as the map's, is too large to cache."""


_HINT = "Pass a folder that bergson wrote, or a .npy file float[training samples, examples]."


@dataclass(frozen=True, eq=False)
class ScoreFile:
    """Scores of s training samples for n examples of a query set."""

    name: str
    samples: NDArray[np.int64]
    """int64[s]: the column `sample` of each row."""
    values: NDArray[np.float32]
    """float32[s, n], NaN if missing."""
    dataset: str | None
    query_set: str


def read_scores(given: str, info: MemoryInfo) -> ScoreFile:
    """`given`: PATH, optionally followed by ;dataset=NAME, ;set=NAME and ;name=NAME if these cannot be inferred.

    Raises BadInput for any other file, and if its rows or columns do not match the dataset or query set.
    """
    path, *options = given.split(";")
    said = dict(own.partition("=")[::2] for own in options)
    if unknown := [name for name in said if name not in ("dataset", "set", "name")]:
        raise _wrong(path, f"{unknown[0]!r} is no option.", "Options are dataset, set and name.")
    samples, values = _of_bergson(Path(path)) if Path(path).is_dir() else _of_array(Path(path))
    dataset = said.get("dataset")
    if dataset is None and len(info.datasets) > 1:
        raise _wrong(path, "The memory has several datasets.", f"Add ';dataset=NAME': {', '.join(info.datasets)}.")
    if dataset is not None and dataset not in info.datasets:
        raise _wrong(path, f"There is no dataset {dataset!r}.", f"Datasets: {', '.join(info.datasets) or 'none'}.")
    sets = {own.name: own.rows if own.examples is None else own.examples for own in info.query_sets}
    fitting = [name for name, count in sets.items() if count == values.shape[1]]
    query_set = said.get("set", fitting[0] if len(fitting) == 1 else None)
    if query_set not in fitting:
        has = ", ".join(f"{name} ({count:,})" for name, count in sets.items()) or "none"
        raise _wrong(path, f"It has scores for {values.shape[1]:,} examples.", f"Add ';set=NAME'. Query sets: {has}.")
    name = said.get("name") or Path(path).stem
    return ScoreFile(name, samples, values, dataset or next(iter(info.datasets), None), query_set)


def _of_array(path: Path) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise _wrong(str(path), f"It cannot be read: {error}.", _HINT) from None
    if not isinstance(values, np.ndarray) or values.ndim != 2 or values.dtype.kind != "f":
        raise _wrong(str(path), "It holds no array float[training samples, examples].", _HINT)
    return np.arange(len(values)), values.astype(np.float32)


def _of_bergson(path: Path) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    try:
        about = json.loads((path / "info.json").read_text())
        if about.get("attribute_tokens"):
            raise _wrong(str(path), "It has a score for each token.", "Score with one number for each document.")
        formats = ["<u2" if own == "bfloat16" else own for own in about["dtype"]["formats"]]  # NumPy lacks bfloat16
        record: Any = {**about["dtype"], "formats": formats}
        rows = np.memmap(path / "scores.bin", dtype=np.dtype(record), mode="r", shape=(about["num_items"],))
        columns = [rows[f"score_{place}"] for place in range(about["num_scores"])]
        # A bfloat16 is the upper half of a float32.
        halves = [(own.astype(np.uint32) << 16).view(np.float32) if own.dtype == np.uint16 else own for own in columns]
        written = [rows[f"written_{place}"] for place in range(about["num_scores"])]
        values = np.where(np.stack(written, 1), np.stack(halves, 1), np.nan).astype(np.float32)
        listed = path / "candidates.npy"
        samples = np.load(listed, allow_pickle=False).astype(np.int64) if listed.exists() else np.arange(len(values))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _wrong(str(path), f"It cannot be read: {error}.", _HINT) from None
    return samples, values


def _wrong(path: str, why: str, hint: str) -> BadInput:
    return BadInput(f"Scores at {path}: {why}", hint=hint, field="scores")


@dataclass(frozen=True)
class Beside:
    """What a reader supplied in addition to a memory."""

    words: Words | None = None
    """Names of labels and outputs that have no recorded name."""
    scores: tuple[ScoreFile, ...] = ()
    """Other packages' scores of the memory's samples."""


def beside_of(memory: Answers) -> Beside:
    found: Beside = getattr(memory, "beside", Beside())
    return found


class RememberedAnswers(Answers):
    """Caches the answers of a memory for its current snapshot. Thread-safe.

    Callers that ask the same question at the same time share one answer.
    """

    def __init__(self, answers: Answers, beside: Beside = Beside()) -> None:
        self._answers, self.beside = answers, beside
        self._lock = Lock()
        self._found: OrderedDict[Any, Future[Any]] = OrderedDict()
        self._seen: MemoryInfo | None = None
        self._closed = False

    def ask(self, question: Question[A]) -> A:
        if isinstance(question, Inventory):
            return cast("A", self._info(question))
        if isinstance(question, SlotLookup | PreviewLookup):  # rarely asked twice
            return cast("A", self._answers.ask(question))
        if isinstance(question, TopK) and question.k > _LARGE:
            return cast("A", self._answers.ask(question))
        key = _key(question)
        with self._lock:
            found = self._found.get(key)
            mine = found is None
            if found is None:
                found = self._found[key] = Future()
                if len(self._found) > _MOST:
                    self._found.popitem(last=False)
            else:
                self._found.move_to_end(key)
        if mine:
            self._answer(question, key, found)
        return cast("A", found.result())

    def _answer(self, question: Question[Any], key: Hashable, found: Future[Any]) -> None:
        try:
            found.set_result(self._patient(question))
        except BaseException as error:
            with self._lock:
                if self._found.get(key) is found:
                    del self._found[key]
            found.set_exception(error)
        if self._closed:  # closed meanwhile, and SQL has started its process again
            self._answers.close()

    def _patient(self, question: Question[A]) -> A:
        """The answer. If a server is overloaded, ask again after a pause."""
        for pause in _PAUSES:
            try:
                return self._answers.ask(question)
            except Overloaded:
                sleep(pause)
        return self._answers.ask(question)

    def _info(self, question: Inventory) -> MemoryInfo:
        """Never cached. If the info changed, cached answers of the old snapshot are dropped."""
        info = self._answers.ask(question)
        with self._lock:
            if info != self._seen:  # not only its number, which another training in the same place could share
                self._seen = info
                self._found.clear()
        return info

    def close(self) -> None:
        self._closed = True
        self._answers.close()


def _key(question: Question[Any]) -> Hashable:
    """Equal for equal questions, also if they contain arrays."""
    if not isinstance(getattr(question, "queries", None), Vectors):
        return question
    own = ((field.name, getattr(question, field.name)) for field in fields(question))  # type: ignore[arg-type]
    return type(question), *((name, said.rows.tobytes() if isinstance(said, Vectors) else said) for name, said in own)


class OneSnapshot(Answers):
    """Accepts answers of only one snapshot, so that no page mixes two. Raises an error if the memory moved on
    meanwhile.
    """

    def __init__(self, answers: Answers, snapshot: int) -> None:
        self._answers, self._snapshot = answers, snapshot
        self.beside = beside_of(answers)

    def ask(self, question: Question[A]) -> A:
        answer = self._answers.ask(question)
        seen = getattr(getattr(answer, "scan", None), "snapshot", 0)  # 0 if an answer does not name its snapshot
        if seen not in (0, self._snapshot):
            raise Unavailable(
                "The memory moved on to newer steps while this was being answered.", hint="Ask for the page again."
            )
        return answer

    def close(self) -> None:
        self._answers.close()


class Memories:
    """All memories by name. Thread-safe."""

    def __init__(
        self,
        opened: Mapping[str, Callable[[], Answers]],
        preview: PreviewFunction | None = None,
        words: Words | None = None,
        scores: Sequence[str] = (),
    ) -> None:
        """`opened`: by name, a function that opens or connects to a memory. `preview`: shows training samples in place
        of recorded previews. `words`: names labels and outputs that have no recorded name. `scores`: files for
        `read_scores`, if there is only one memory.
        """
        self._opened, self._preview, self._words, self._scores = dict(opened), preview, words, tuple(scores)
        if scores and len(opened) > 1:
            raise BadInput("Scores are those of one memory.", hint="Name one target.", field="scores")
        self._answers: dict[str, tuple[Answers, RememberedAnswers]] = {}
        self._scouts: dict[str, Answers] = {}
        """Memories opened a second time to look for new steps."""
        self._locks = {name: Lock() for name in opened}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._opened)

    def one(self, name: str) -> RememberedAnswers:
        """Raises NotFound for an unknown name, and the error of opening a memory, each time."""
        return self._both(name)[1]

    def newest(self, name: str) -> RememberedAnswers:
        """The memory with all steps committed so far. A server refreshes itself; a folder is refreshed here."""
        answers, remembered = self._both(name)
        refresh: Any = getattr(answers, "refresh", None)
        if refresh is not None:
            refresh()
        return remembered

    def news(self, name: str) -> MemoryInfo:
        """The info of the newest snapshot. Pages keep the snapshot that they show."""
        answers, _ = self._both(name)
        if not hasattr(answers, "refresh"):
            return answers.info()
        with self._locks[name]:
            if name not in self._scouts:
                self._scouts[name] = self._opened[name]()
            scout: Any = self._scouts[name]
        scout.refresh()
        info: MemoryInfo = scout.info()
        return info

    def _both(self, name: str) -> tuple[Answers, RememberedAnswers]:
        if name not in self._opened:
            raise NotFound(f"There is no memory {name!r}.", hint=f"There is {', '.join(self._opened)}.", field="memory")
        with self._locks[name]:
            if name not in self._answers:
                answers = self._opened[name]()
                info = answers.info() if self._scores else None
                scores = tuple(read_scores(own, info) for own in self._scores if info is not None)
                beside = Beside(self._words, scores)
                shown = answers if self._preview is None else AnswersWithPreviews(answers, self._preview)
                self._answers[name] = answers, RememberedAnswers(shown, beside)
            return self._answers[name]

    def close(self) -> None:
        for answers in (*(own for _, own in self._answers.values()), *self._scouts.values()):
            answers.close()


def names_of(targets: Sequence[str]) -> list[str]:
    """Names for targets: the last part of a folder, with more parts if two are alike; a server's address as it is."""
    parts = [Path(target).resolve().parts if Path(target).exists() else (target,) for target in targets]
    names = [own[-1] for own in parts]
    for depth in range(2, 1 + max(map(len, parts), default=1)):
        for place, own in enumerate(parts):
            if sum(name == names[place] for name in names) > 1:
                names[place] = "/".join(own[-depth:])
    return names
