"""The search page: finds a phrase in texts and table rows of previews, and shows one concordance line for each sample.
The search ignores case, and no character is special.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import numpy as np

from dualform.answers import MemoryInfo, Preview
from dualform.answers.contents import IMAGES
from dualform.errors import BadInput, BadMask, DualformError, Forbidden
from dualform_explorer.examples import LabelNames
from dualform_explorer.filter import literal, narrowed, samples_filter
from dualform_explorer.sample import SampleAddress
from dualform_explorer.state import LONGEST, SINGLE, State, link, query_string
from dualform_explorer.view import Snapshot

PARAMETERS = (*SINGLE, "q", "from")
"""The parameters of its address, including those of the example that the reader came from."""
MOST_SAMPLES, MOST_LINES, SECONDS = 20_000, 200, 10.0
"""The most samples read and lines found for one page, and the seconds spent."""
AROUND = 60
"""The number of characters shown on either side of a match."""
_BATCH = 512
"""The most samples in one call of `previews`; fewer if their previews are large."""
_COUNTS = "SELECT dataset, count(DISTINCT sample) AS samples FROM slots WHERE sample IS NOT NULL GROUP BY dataset"
_SAMPLES = """
    SELECT sample, min(label) AS least, max(label) AS greatest FROM slots
    WHERE dataset IS NOT DISTINCT FROM {dataset} AND sample IS NOT NULL
    GROUP BY sample ORDER BY sample LIMIT {most} OFFSET {start}"""


@dataclass(frozen=True)
class Line:
    """The first match in a sample."""

    query_set: str
    """Empty for a training sample."""
    dataset: str | None
    sample: int
    """The number of the sample, or of the query set's example."""
    label: int | None
    """None if unknown, or if the tokens of a text have several labels."""
    label_name: str
    column: str
    """The column of a table row; empty for a text."""
    before: str
    match: str
    after: str
    more: int
    """The number of further matches in the same sample."""

    def address(self, memory: str) -> str:
        """The address of the page that shows the line's sample."""
        if self.query_set:
            said = [("memory", memory), ("item", f"{self.query_set}/{self.sample}")]
            return "explore?" + query_string([own for own in said if own[1]])
        return SampleAddress(memory, self.dataset, self.sample, "").link()


@dataclass(frozen=True)
class _Source:
    """A dataset or a query set whose previews are read."""

    count: int
    dataset: str | None = None
    query_set: str | None = None


@dataclass(frozen=True)
class SearchPanel:
    lines: tuple[Line, ...]
    start: int
    stop: int
    """The samples from start to stop were read, in an order that stays the same."""
    total: int
    """The number of all samples, including those of query sets."""
    unread: int
    """The number of samples from start to stop that could not be read."""
    blank: int
    """The number of samples that were read but lack a preview."""
    troubles: tuple[str, ...]
    """Why some could not be read."""
    keep: str = ""
    remove: str = ""
    """The addresses of the example's page with a filter that keeps, or removes, the training samples that were found;
    empty without one."""
    refused: str = ""
    """The reason if these filters are missing."""

    @property
    def samples(self) -> list[tuple[str | None, int]]:
        """The training samples that were found, by dataset and number."""
        return [(own.dataset, own.sample) for own in self.lines if not own.query_set]


def searchable(info: MemoryInfo) -> bool:
    """Whether a memory has previews that are not images."""
    kinds = {*info.previews.values(), *(own.previews for own in info.query_sets)}
    return bool(kinds - {"", IMAGES})


def search_panel(
    snapshot: Snapshot, state: State | None, phrase: str, start: int, seconds: float = SECONDS
) -> SearchPanel:
    """`state`: the example that the reader came from, for whose page the filter is; None in a memory without query
    sets. `seconds`: the time limit for reading previews.
    """
    until, names = monotonic() + seconds, snapshot.names
    sources, troubles = _sources(snapshot)
    total = sum(own.count for own in sources)
    start = place = min(start, total)
    lines: list[Line] = []
    pattern, full = re.compile(re.escape(phrase), re.IGNORECASE), not phrase
    last = unread = blank = 0
    for source in sources:
        first, last = last, last + source.count
        if full or not first <= place < last:
            continue
        try:
            for preview, label in _read(snapshot, source, place - first, start + MOST_SAMPLES - place):
                place, blank = place + 1, blank + (not preview.known)
                lines += _line(preview, source, label, pattern, names)
                full = len(lines) == MOST_LINES or place - start == MOST_SAMPLES or monotonic() > until
                if full:
                    break
        except DualformError as error:
            name = source.query_set or source.dataset or "samples without a dataset"
            troubles.append(f"Not searched: {name}. {error.message}")
        if not full:  # it could not be read, or a running training has fewer samples than were counted
            place, unread = last, unread + last - place
    found = SearchPanel(tuple(lines), start, place, total, unread, blank, tuple(troubles))
    if state is None or not found.samples:
        return found
    try:
        keep, remove = (filtered(state, found.samples, only) for only in (True, False))
    except BadMask as error:
        return replace(found, refused=error.message)
    return replace(found, keep=keep, remove=remove)


def _sources(snapshot: Snapshot) -> tuple[list[_Source], list[str]]:
    """Datasets in the order of their names, then query sets, and why some cannot be searched."""
    own, troubles = [name for name, kind in snapshot.info.previews.items() if kind != IMAGES], []
    counts: Mapping[str, int] = {}
    if own:
        try:
            counts = {row["dataset"] or "": row["samples"] for row in snapshot.memory.sql(_COUNTS)}
        except Forbidden as error:
            troubles.append(f"Training samples are not searched: {error.message} {error.hint}".strip())
    found = [_Source(counts[name], name or None) for name in sorted(own) if counts.get(name)]
    for query_set in snapshot.info.query_sets:
        if query_set.previews not in ("", IMAGES):
            found.append(_Source(snapshot.examples_of(query_set.name).count, query_set=query_set.name))
    return found, troubles


def _read(snapshot: Snapshot, source: _Source, start: int, most: int) -> Iterator[tuple[Preview, int | None]]:
    """The previews of a source from a place on, each with its label. Skips images."""
    labels = _labels(snapshot, source, start, most)
    samples, done, size = [*labels], 0, _BATCH
    while done < len(samples):
        asked = np.array(samples[done : done + size], dtype=np.int64)
        try:
            previews = snapshot.memory.previews(asked, source.dataset, query_set=source.query_set)
        except BadInput as error:
            if error.field != "samples" or len(asked) == 1:
                raise
            size = len(asked) // 2  # more than one answer holds
            continue
        if previews.kind == IMAGES and previews.known.any():
            raise BadInput("Its samples are shown as images.")
        done += len(asked)
        yield from ((own, labels[own.sample]) for own in previews)


def _labels(snapshot: Snapshot, source: _Source, start: int, most: int) -> dict[int, int | None]:
    """The label of each sample, in the order of their numbers."""
    if source.query_set is not None:
        examples = snapshot.examples_of(source.query_set)
        return {row: examples.label(row) for row in range(start, min(start + most, source.count))}
    dataset = "NULL" if source.dataset is None else literal(source.dataset)
    rows = snapshot.memory.sql(_SAMPLES.format(dataset=dataset, start=start, most=most))
    return {row["sample"]: row["least"] if row["least"] == row["greatest"] else None for row in rows}


def _line(
    preview: Preview, source: _Source, label: int | None, pattern: re.Pattern[str], names: LabelNames
) -> list[Line]:
    """A list of one line, or an empty list if nothing matches."""
    texts = {"": preview.text} if preview.text is not None else preview.row or {}
    shown = {column: str(value) for column, value in texts.items() if value is not None}
    matches = ((column, own.span()) for column, text in shown.items() for own in pattern.finditer(text))
    if (first := next(matches, None)) is None:
        return []
    column, span = first
    name = names.of(label) if source.query_set else names.of(label, source.dataset)
    parts = around(shown[column], *span)
    own = (source.query_set or "", source.dataset, preview.sample, label, name, column)
    return [Line(*own, *parts, sum(1 for _ in matches))]


def around(text: str, start: int, stop: int) -> tuple[str, str, str]:
    """The text before a match, the match, and the text after it, all on one line."""
    before, after = text[max(0, start - AROUND) : start], text[stop : stop + AROUND]
    more = "\N{HORIZONTAL ELLIPSIS}"
    parts = (more * (start > AROUND) + before, text[start:stop], after + more * (len(text) > stop + AROUND))
    before, match, after = (re.sub(r"\s", " ", own) for own in parts)
    return before, match, after


def filtered(state: State, samples: Iterable[tuple[str | None, int]], only: bool) -> str:
    """The address of an example's page with one more condition: only these samples, or all others. Raises BadMask if
    the condition is too long for an address, or if the reader's own condition is malformed.
    """
    where = narrowed(state.where, samples_filter(samples, only))
    if len(where) > LONGEST:
        raise BadMask(
            f"These are too many for a filter: it takes {len(where):,} letters, and an address holds {LONGEST:,}."
        )
    return link(state, where=where)


def search_address(state: State | None, memory: str, phrase: str, start: int = 0) -> str:
    """The address of a search that starts at a place."""
    params: list[tuple[str, Any]] = [("q", phrase), ("from", str(start))] if start else [("q", phrase)]
    rest = state.params() if state is not None else [("memory", memory)] if memory else []
    return "search?" + query_string([*params, *rest])
