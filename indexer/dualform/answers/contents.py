"""The contents of a memory: layers, query sets and previews; and how notebooks show samples.

What notebooks show in addition to an answer's numbers: samples, names of labels, and bars.

The memory is asked for samples and names when an answer is shown. Only `escaped` turns its texts into HTML.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers.table import (
    SHOWN,
    Columns,
    Html,
    Recorded,
    Scan,
    Shown,
    Status,
    Table,
    as_html,
    as_text,
    beside,
    column_of,
    counted,
    escaped,
    free_name,
)
from dualform.errors import BadInput, DualformError

MOST_ROWS = 20
"""That an answer with samples or bars shows."""
_BLUE, _RED, _GREY = "#2a6f97", "#c1553b", "#888888"
_WIDTH, _HEIGHT = 200, 14
"""The size of a cell with a bar, in pixels."""
_PICTURE = 48
"""Pixels to which lower pictures are enlarged."""
_AROUND, _LONGEST_TEXT = 30, 80
"""Characters of a text on either side of a token, and of a text."""
_LABELS = "SELECT dataset, label, name FROM labels"
_EXAMPLES = "sample"
"""The slot space of layers whose queries are a query set's examples; others have queries of tokens."""
_FIRST = ("dataset", "label", "sample", "step")
_LEFT_OUT = ("slot", "row", "call")
"""Columns of slots that hits have, or that only say where in a step a sample stood."""


def with_samples(table: Columns, ids: NDArray[Any], by: Sequence[str], space: str, memory: Any) -> Columns:
    """A table of hits, with the columns of their slots `ids`, and with previews."""
    found = memory.slots(ids, space or None)
    rows = found.records()
    said = {
        name: found[name]
        for name in dict.fromkeys((*_FIRST, *found.keys()))
        if name in found and name not in _LEFT_OUT and any(row[name] is not None for row in rows)
    }
    own = dict(table.arrays)
    if "label" in said:
        name = label_names(memory)
        said["label"] = column_of([name(row["label"], row.get("dataset")) for row in rows])
    own |= {name: said.pop(name) for name in by if name in said}
    pictures = _pictures(rows, memory)
    if any(pictures):
        own[free_name("preview", own)] = column_of(pictures)
    return Columns(beside(own, said, len(own)), table.scan, table.space)


def _pictures(rows: Sequence[Mapping[str, Any]], memory: Any) -> list[Html | None]:
    """A cell for each slot. One question a dataset."""
    cells: list[Html | None] = [None] * len(rows)
    for dataset in dict.fromkeys(row.get("dataset") for row in rows):
        of = {place: row for place, row in enumerate(rows) if row.get("dataset") == dataset}
        samples = sorted({row["sample"] for row in of.values() if row.get("sample") is not None})
        with suppress(DualformError):  # no previews, or samples too large for an answer
            seen = dict(zip(samples, memory.previews(samples, dataset), strict=True)) if samples else {}
            for place, row in of.items():
                if (preview := seen.get(row.get("sample"))) is not None:
                    cells[place] = cell_of(preview, row.get("position"))
    return cells


def cell_of(preview: Preview, position: int | None = None) -> Html | None:
    """The preview of a sample, with the token at a position marked; None if unknown."""
    if preview.image is not None:
        low = int.from_bytes(preview.image[20:24]) < _PICTURE  # where every PNG says how high it is
        style = f' style="height:{_PICTURE}px;image-rendering:pixelated"' if low else ' style="max-height:128px"'
        source = f"data:image/png;base64,{b64encode(preview.image).decode()}"
        return Html(f'<img alt="sample {preview.sample}" src="{source}"{style}>')
    if preview.row is not None:
        return _shortened(", ".join(f"{name}: {value}" for name, value in preview.row.items() if value is not None))
    if preview.text is None:
        return None
    marked = None if position is None else preview.marked(position)
    if marked is None:
        return _shortened(preview.text)
    before, token, behind = (re.sub(r"\s+", " ", part) for part in marked)
    return Html(f"{escaped(before[-_AROUND:])}<mark>{escaped(token[:_LONGEST_TEXT])}</mark>{escaped(behind[:_AROUND])}")


def _shortened(text: str) -> Html:
    line = " ".join(text[: 4 * _LONGEST_TEXT].split())
    return Html(escaped(line if len(line) <= _LONGEST_TEXT else f"{line[: _LONGEST_TEXT - 1]}…"))


def label_names(memory: Any) -> Callable[..., Any]:
    """What makes 3 "3 (three)", by label and dataset. Without a dataset, all that the memory holds must agree."""
    known: dict[tuple[Any, Any], str] = {}
    with suppress(DualformError):  # a server may answer no SQL
        known = {(row["dataset"], row["label"]): str(row["name"]) for row in memory.sql(_LABELS)}
    every = bool(known) and {*memory.info().datasets} <= {dataset for dataset, _ in known}

    def name(label: Any, dataset: str | None = None) -> Any:
        """The label itself if it has no name, or several."""
        names = {
            own
            for (of, number), own in known.items()
            if number == label and (every if dataset is None else of == dataset)
        }
        return f"{label} ({names.pop()})" if len(names) == 1 and names != {str(label)} else label

    return name


def with_names(groups: Mapping[str, NDArray[Any]], memory: Any) -> dict[str, NDArray[Any]]:
    """Columns of groups, their labels with names."""
    if memory is None or "label" not in groups:
        return dict(groups)
    name, labels = label_names(memory), groups["label"].tolist()
    datasets = groups["dataset"].tolist() if "dataset" in groups else [None] * len(labels)
    return {**groups, "label": column_of([name(*row) for row in zip(labels, datasets, strict=True)])}


def output_names(memory: Any, question: Any) -> Callable[..., Any]:
    """As `label_names`, for outputs of the network. Outputs of other layers are not labels."""
    if memory is None or question.layer not in (None, memory.info().output_layer):
        return lambda output: output
    return label_names(memory)


def query_labels(memory: Any, question: Any, space: str) -> NDArray[Any] | None:
    """int64[n]: the label of each query, -1 if it has none; None if unknown."""
    name = getattr(getattr(question, "queries", None), "query_set", None)
    if memory is None or name is None or space != _EXAMPLES:
        return None
    examples = question.queries.examples
    stored = memory.query_set(name)
    labels: NDArray[Any] | None = stored.labels
    if labels is None or stored.examples not in (None, len(labels)):  # those of tokens are of no example
        return None
    return labels if examples is None else labels[[*examples]]


def bars(spans: Sequence[tuple[float, float]], totals: Sequence[int] = ()) -> list[Html]:
    """A bar from one number to another for each row, all on one axis; those of the rows `totals` are grey."""
    ends = [end for span in spans for end in span if isfinite(end)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    scale = _WIDTH / (high - low) if low < high else 0.0
    axis = f'<path d="M{-low * scale:.1f} 0V{_HEIGHT}" stroke="{_GREY}"/>'
    return [
        Html(f'<svg width="{_WIDTH}" height="{_HEIGHT}" aria-hidden="true">{drawn}{axis}</svg>')
        for drawn in (_bar(start, end, low, scale, row in totals) for row, (start, end) in enumerate(spans))
    ]


def _bar(start: float, end: float, low: float, scale: float, total: bool) -> str:
    if not (isfinite(start) and isfinite(end)):
        return ""
    left, width = (min(start, end) - low) * scale, abs(end - start) * scale
    colour = _GREY if total else _BLUE if end >= start else _RED
    return f'<rect x="{left:.1f}" y="2" width="{width:.1f}" height="{_HEIGHT - 4}" fill="{colour}"/>'


@dataclass(frozen=True)
class Patches:
    """Which patches of its input a convolution takes: a number for each dimension but the channels'."""

    size: tuple[int, ...]
    """Of its input in training."""
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    """Zeros on each side."""
    dilation: tuple[int, ...]

    @property
    def places(self) -> tuple[int, ...]:
        """How many patches there are along each dimension; the last one varies first in their order."""
        sides = zip(self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return tuple((own + 2 * zeros - far * (k - 1) - 1) // step + 1 for own, k, step, zeros, far in sides)

    def spans(self, place: int) -> tuple[tuple[int, int], ...]:
        """Where one patch starts and stops in the input along each dimension, without the padding."""
        found = []
        for own, k, step, zeros, far, count in reversed(
            list(zip(self.size, self.kernel, self.stride, self.padding, self.dilation, self.places, strict=True))
        ):
            place, number = divmod(place, count)
            start = number * step - zeros
            found.append((max(0, start), min(own, start + far * (k - 1) + 1)))
        return tuple(reversed(found))


@dataclass(frozen=True)
class LayerInfo(Recorded):
    name: str
    d_in: int
    """The width of a key, without the 1 for the bias."""
    d_out: int
    bias: bool
    space: str
    """The slot space of the layer."""
    slots: int
    distinct_keys: int
    """The number of stored keys: fewer than slots if inputs repeat, and 0 if keys were not stored (see `reason`)."""
    values: bool
    """Whether error signals were stored."""
    status: Status
    """How exact the record is at the end of the training."""
    views: tuple[str, ...] = ()
    """Names of its parts, which can be queried like layers: groups of a convolution; q, k and v of an attention."""

    batch_dim: int = 0
    """The axis of the batch in the layer's inputs."""
    patches: Patches | None = None
    """For a convolution; None for other layers."""


@dataclass(frozen=True)
class QuerySetInfo:
    name: str
    rows: int
    """The number of queries of its first layer: one for each example or, in layers that see tokens, for each token."""
    layers: tuple[str, ...]
    previews: str = ""
    """The kind of its previews: "images", "texts" or "table"; empty without previews."""
    examples: int | None = None
    """The number of examples; None if unknown."""


@dataclass(frozen=True, repr=False)
class MemoryInfo(Table):
    """The contents of a memory, as of one snapshot. Iterating gives its layers."""

    format: int
    """The version of the format on disk (docs/format.md)."""
    snapshot: int
    """The number of commits in the snapshot."""
    recording: bool
    """False once the recorder has ended. It stays True if the training was killed (`cut_off`)."""
    slots: Mapping[str, int]
    """The number of slots by space."""
    steps: int
    """The number of recorded steps."""
    optimizer: str
    """Class names, such as "SGD"."""
    layers: tuple[LayerInfo, ...]
    skipped: Mapping[str, str]
    """Layers that were not recorded, with the reason."""
    datasets: Mapping[str, int]
    """The number of slots by dataset, over all spaces. Slots without a dataset are left out."""
    columns: Mapping[str, Mapping[str, str]]
    """The columns of slots and their DuckDB types, by space."""
    query_sets: tuple[QuerySetInfo, ...]
    cut_off: str = ""
    """One sentence on how far a recording got that did not end; otherwise empty."""
    final: Mapping[str, str] = field(default_factory=dict)
    """The digest of each parameter and buffer at the end of the training; empty if unknown."""
    sampling: str = ""
    """One sentence on how slots were sampled to hold a budget, and the share that was kept; empty if all were."""
    answered_by: str = ""
    """The backend that scores keys, and the compiled loops or why they are missing."""
    previews: Mapping[str, str] = field(default_factory=dict)
    """The kind of previews ("images", "texts" or "table") of each dataset that has some; "" means samples without a
    dataset."""
    output_layer: str | None = None
    """The layer that gives the network's outputs, the default of queries; None if unknown."""

    def require_output_layer(self) -> str:
        """`output_layer`. Raises BadInput if it is not known."""
        if self.output_layer is None:
            names = [layer.name for layer in self.layers]
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise BadInput(
                "which layer gives the network's outputs is not known.",
                hint=f"Pass layer=, one of {', '.join(names[-_NAMED:])}{more}.",
                field="layer",
            )
        return self.output_layer

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[LayerInfo]:
        return iter(self.layers)

    @property
    def rows(self) -> int:
        return len(self.layers)

    def table(self, most: int | None = None) -> Columns:
        """One row for each layer: name, space, widths, slots, whether it has values, and status."""
        layers = self.layers[:most]
        return Columns(
            {
                "layer": column_of([own.name for own in layers]),
                "space": column_of([own.space for own in layers]),
                "d_in": column_of([own.d_in for own in layers]),
                "d_out": column_of([own.d_out for own in layers]),
                "slots": column_of([own.slots for own in layers]),
                "values": column_of([own.values for own in layers]),
                "status": column_of([str(own.status) for own in layers]),
            }
        )

    def title(self) -> str:
        state = "still recording" if self.recording and not self.cut_off else self.cut_off
        slots = [counted(count, f"{space} slot") for space, count in self.slots.items()]
        said = (counted(len(self.layers), "layer"), f"{counted(self.steps, 'step')} of {self.optimizer}", *slots, state)
        parts = [
            f"MemoryInfo: {', '.join(own for own in said if own)}",
            f"query sets: {_first({query_set.name: query_set.rows for query_set in self.query_sets})}",
            f"datasets (slots): {_first(self.datasets)}",
        ]
        skipped = f"{counted(len(self.skipped), 'layer')} not recorded (.skipped)" if self.skipped else ""
        return "; ".join(part for part in (*parts, skipped, self.sampling.rstrip(".")) if part)


def _first(counts: Mapping[str, int]) -> str:
    """The first names, each with its count."""
    shown = [f"{name} ({count:,})" for name, count in [*counts.items()][:_SHOWN_NAMES]]
    more = [f"and {len(counts) - _SHOWN_NAMES:,} more"] if len(counts) > _SHOWN_NAMES else []
    return ", ".join([*shown, *more]) or "none"


_NAMED = 8
"""Layers that a refusal names, the last of them."""
_SHOWN_NAMES = 5
"""Query sets and datasets that a title names."""


LARGEST = 5
"""Outputs of a row that are kept."""


@dataclass(frozen=True, eq=False)
class OutputSummary:
    """The largest outputs of each row, its label's, and the logarithm of the sum of all their exponentials."""

    largest: NDArray[np.int64]
    """int64[rows, k]: the numbers of the largest outputs, the largest first."""
    values: NDArray[np.float32]
    """float32[rows, k]: those outputs."""
    label: NDArray[np.float32]
    """float32[rows]: the output of the row's label, NaN without one."""
    logsumexp: NDArray[np.float32]
    """float32[rows]: less `label`, it is the cross-entropy in nats."""
    width: int
    """How many outputs a row has."""

    def __len__(self) -> int:
        return len(self.largest)

    @property
    def loss(self) -> NDArray[np.float64]:
        """float64[rows]: the cross-entropy of each row's label in nats, NaN without one."""
        return self.logsumexp.astype(np.float64) - self.label

    @classmethod
    def of(cls, outputs: NDArray[np.float32], labels: NDArray[np.int64] | None = None) -> OutputSummary:
        """`outputs`: float32[rows, outputs]; `labels`: int64[rows], -1 without one."""
        rows, width = outputs.shape
        k = min(LARGEST, width)
        largest = np.empty((rows, k), np.int64)
        logsumexp = np.empty(rows, np.float32)
        for start in range(0, rows, _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            own = outputs[part]
            chosen = np.argpartition(-own, k - 1, axis=1)[:, :k]
            chosen.sort(axis=1)
            order = np.argsort(-np.take_along_axis(own, chosen, axis=1), axis=1, kind="stable")
            largest[part] = np.take_along_axis(chosen, order, axis=1)
            top = own.max(axis=1, keepdims=True).astype(np.float64)
            logsumexp[part] = top[:, 0] + np.log(np.exp(own - top).sum(axis=1))
        label = np.full(rows, np.nan, np.float32)
        if labels is not None:
            known = np.flatnonzero((labels >= 0) & (labels < width))
            label[known] = outputs[known, labels[known]]
        return cls(largest, np.take_along_axis(outputs, largest, axis=1), label, logsumexp, width)

    @classmethod
    def joined(cls, parts: list[OutputSummary]) -> OutputSummary:
        """Of rows one after another."""
        return cls(
            np.concatenate([own.largest for own in parts]),
            np.concatenate([own.values for own in parts]),
            np.concatenate([own.label for own in parts]),
            np.concatenate([own.logsumexp for own in parts]),
            parts[0].width,
        )


_AT_ONCE = 256
"""Rows."""


@dataclass(frozen=True, eq=False, repr=False)
class QuerySet(Shown):
    """A stored query set of n examples: labels, the model's outputs, and the queries of a layer of width d."""

    name: str
    labels: NDArray[np.int64] | None
    """int64[n], or int64[n * L] with a label for each token, example after example; -1 if unknown."""
    outputs: NDArray[np.float32] | None
    """float32[n, outputs]: the outputs of the model when the query set was recorded. If the model has outputs for each
    token, float32[n * L, outputs], example after example. None if they were not stored, or only as a `summary`."""
    queries: NDArray[np.float32] | None = None
    """float32[n, d]: the queries of the named layer, otherwise None. In layers that see tokens float32[n * L, d],
    example after example."""
    scan: Scan = field(default_factory=Scan)
    examples: int | None = None
    """n; None if unknown."""
    summary: OutputSummary | None = None
    """If the outputs of all tokens would take more than 32 MiB: the largest outputs of each token, in their place."""

    def shown(self, most: int) -> tuple[Columns, int]:
        """One row for each example, or for each token of it: its label and the largest output."""
        lengths = [len(own) for own in (self.labels, self.outputs, self.summary) if own is not None]
        rows = max(lengths, default=0)
        row = np.arange(min(rows, most))
        tokens = rows // max(min([*lengths, self.examples or rows]), 1)
        found: dict[str, NDArray[Any]] = {"example": row // max(tokens, 1)}
        if tokens > 1:
            found["token"] = row % tokens
        if self.labels is not None:
            own = self.labels[row // (rows // len(self.labels))] if rows else self.labels
            found["label"] = column_of([label if label >= 0 else None for label in own.tolist()])
        if self.outputs is not None:
            largest = self.outputs[row // (rows // len(self.outputs))] if rows else self.outputs
            found["largest output"] = largest.argmax(axis=1)
        elif self.summary is not None:
            found["largest output"] = self.summary.largest[row // max(rows // len(self.summary), 1), 0]
        return Columns(found, self.scan), rows

    def title(self) -> str:
        parts = [f"labels int64[{len(self.labels)}]"] if self.labels is not None else ["no labels"]
        for name, own in (("outputs", self.outputs), ("queries", self.queries)):
            parts += [] if own is None else [f"{name} float32[{len(own)}, {own.shape[1]}]"]
        return f"Query set {self.name!r}: {', '.join(parts)}"


IMAGES, TEXTS, TABLE = KINDS = ("images", "texts", "table")
"""The kinds of preview sets."""
MOST_BYTES = 8 << 20
"""The most bytes in one answer, and so for one sample."""
PNG = b"\x89PNG\r\n\x1a\n"
"""How every PNG begins, and nothing else that a browser would run or follow does."""


@dataclass(frozen=True, eq=False)
class Preview:
    """The preview of one sample: its `image`, its `text` or its `row`, by kind. All are None without a preview."""

    sample: int
    image: bytes | None = None
    """A PNG."""
    text: str | None = None
    offsets: NDArray[np.int32] | None = None
    """int32[positions, 2]: the start and stop of each position in `text`, in characters; None if unknown."""
    first: int = 0
    """The position of the first of `offsets`."""
    row: Mapping[str, Any] | None = None
    """Plain values by column; NULL is None."""

    @property
    def known(self) -> bool:
        """Whether the sample has a preview."""
        return not (self.image is None and self.text is None and self.row is None)

    def marked(self, position: int) -> tuple[str, str, str] | None:
        """`text` before a position, at it and after it; None if its place is unknown or empty, as for padding."""
        place = position - self.first
        if self.text is None or self.offsets is None or not 0 <= place < len(self.offsets):
            return None
        start, stop = self.offsets[place].tolist()
        return None if start == stop else (self.text[:start], self.text[start:stop], self.text[stop:])


@dataclass(frozen=True, eq=False, repr=False)
class Previews(Table):
    """The previews of some samples of a dataset or examples of a query set, in the order of the call.

    Iterating gives a `Preview` for each; `previews[i]` shows `samples[i]`. Contents are data, never code: PNG images or
    texts.
    """

    samples: NDArray[np.int64]
    """int64[n], as in the call."""
    kind: str
    """ "images", "texts" or "table"."""
    known: NDArray[np.bool_]
    """bool[n]: whether each sample has a preview."""
    images: tuple[bytes | None, ...] = ()
    """A PNG for each sample (8 bits, grey or RGB), None without a preview. Empty for other kinds."""
    texts: tuple[str | None, ...] = ()
    """A text for each sample, None without a preview. Empty for other kinds."""
    offsets: tuple[NDArray[np.int32], ...] | None = None
    """For each text, the offsets of its positions, [0, 2] without a preview; None if the texts were stored without
    offsets. `Preview.offsets` reads them by the column `position`."""
    firsts: NDArray[np.int64] | None = None
    """int64[n]: the position of the first offset of each text; None if all are 0."""
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """The columns of a table by name, n entries each, NULL without a preview. Empty for other kinds."""
    scale: tuple[float, float] | None = None
    """The numbers shown as black and as full brightness, for images that were not 8-bit numbers."""
    scan: Scan = field(default_factory=Scan)

    def __getitem__(self, place: int) -> Preview:
        if not self.known[place]:
            return Preview(int(self.samples[place]))
        return Preview(
            int(self.samples[place]),
            self.images[place] if self.images else None,
            self.texts[place] if self.texts else None,
            None if self.offsets is None else self.offsets[place],
            0 if self.firsts is None else int(self.firsts[place]),
            {name: column[[place]].tolist()[0] for name, column in self.columns.items()}
            if self.kind == TABLE
            else None,
        )

    def __iter__(self) -> Iterator[Preview]:
        return (self[place] for place in range(len(self)))

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def rows(self) -> int:
        return len(self)

    @property
    def missing(self) -> NDArray[np.int64]:
        """int64[m]: the `samples` without a preview."""
        return self.samples[~self.known]

    def table(self, most: int | None = None) -> Columns:
        """One row for each sample: its number, and its image (a PNG), its text or its columns."""
        shown = {"sample": self.samples[:most]}
        if self.kind == TABLE:
            own = {name: column[:most] for name, column in self.columns.items()}
            return Columns({free_name("sample", own): shown["sample"], **own}, self.scan)
        content = self.images if self.kind == IMAGES else self.texts
        return Columns({**shown, self.kind.removesuffix("s"): column_of(content[:most])}, self.scan)

    def __repr__(self) -> str:
        if self.kind != IMAGES:
            return super().__repr__()
        sizes = [None if image is None else f"a PNG of {len(image):,} bytes" for image in self.images[: SHOWN + 2]]
        return as_text(
            Columns({"sample": self.samples[: SHOWN + 2], "image": column_of(sizes)}), self.rows, self.title()
        )

    def _html(self, memory: Any, question: Any) -> str:
        """With the images themselves. They are data with a media type, so a browser runs nothing."""
        if self.kind != IMAGES:
            return super()._html(memory, question)
        pictures = column_of([cell_of(own) for own in islice(self, SHOWN + 2)])
        return as_html(Columns({"sample": self.samples[: SHOWN + 2], "image": pictures}), self.rows, self.title())

    def title(self) -> str:
        lacking = len(self.missing)
        beside = f", {lacking:,} of them not in the preview set" if lacking else ""
        return f"Previews: {self.kind} of {counted(len(self), 'sample')}{beside}"
