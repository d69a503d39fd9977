"""What notebooks show in addition to an answer's numbers: samples, names of labels, and bars.

The memory is asked for samples and names when an answer is shown. Only `escaped` turns its texts into HTML.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from typing import TYPE_CHECKING, Any

from dualform.answers.columns import Columns, Html, column_of, escaped
from dualform.answers.table import beside, free_name
from dualform.errors import DualformError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dualform.answers.previews import Preview

MOST_ROWS = 20
"""That an answer with samples or bars shows."""
_BLUE, _RED, _GREY = "#2a6f97", "#c1553b", "#888888"
_WIDTH, _HEIGHT = 200, 14
"""The size of a cell with a bar, in pixels."""
_PICTURE = 48
"""Pixels to which lower pictures are enlarged."""
_AROUND, _LONGEST = 30, 80
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
    return Html(f"{escaped(before[-_AROUND:])}<mark>{escaped(token[:_LONGEST])}</mark>{escaped(behind[:_AROUND])}")


def _shortened(text: str) -> Html:
    line = " ".join(text[: 4 * _LONGEST].split())
    return Html(escaped(line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"))


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
