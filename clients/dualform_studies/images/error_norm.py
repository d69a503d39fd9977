"""Attention weights times the norm of what they bring: the variant in the side note of the paper's section 5.2.

    sum_t |alpha_t| ||e_t||        over the slots t of a class; e_t = a_s c_s delta_t is the value at a step

Shapes: T slots, G classes, n queries, d_in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dualform.query.engine import Engine
from dualform_studies.claims import Claim, judged, verdict
from dualform_studies.images.observations import MOST
from dualform_studies.images.training import Checkpoint
from dualform_studies.recorded_memory import layer_info
from dualform_studies.report import Report, in_fraction, percent

TRENDS = {
    "greatest": "its own class has the greatest sum",
    "least": "its own class has the least sum",
    "same": "one class, the same for all, has the greatest sum",
}
"""What a recognised test image might show, and with it most of the others."""
_ROWS = 4096


def ask_trends(memory: Engine, layers: Sequence[str], checkpoint: Checkpoint) -> Report:
    """By layer, `trends` of the test images of a checkpoint."""
    given, labels = checkpoint.classes_given(memory), checkpoint.dataset.test.labels
    found: Report = {}
    for layer in layers:
        classes, sums = error_norm_sums(memory, layer, checkpoint.query_set, checkpoint.step)
        found[layer] = trends(sums, classes, labels, given == labels)
    return found


def trends(
    sums: NDArray[np.float64], classes: NDArray[np.int64], labels: NDArray[np.int64], right: NDArray[np.bool_]
) -> dict[str, float | None]:
    """Each of TRENDS as a share of the recognised test images, from 0 to 1; None without any.

    `sums` is float64[n, G] with the classes int64[G]; `labels` is int64[n], and bool[n] `right` where they are given.
    """
    if not right.any():
        return dict.fromkeys(TRENDS)
    greatest, least = classes[sums[right].argmax(axis=1)], classes[sums[right].argmin(axis=1)]
    return {
        "greatest": float((greatest == labels[right]).mean()),
        "least": float((least == labels[right]).mean()),
        "same": float(np.unique(greatest, return_counts=True)[1].max() / len(greatest)),
    }


def trend_claims(layers: Mapping[str, Report]) -> list[Claim]:
    """That there is no consistent trend; `layers` holds `trends` by layer. No claim where no image is recognised."""
    if any(share is None for shares in layers.values() for share in shares.values()):
        return []
    without = sum(max(shares.values()) < MOST for shares in layers.values())
    told = (f"{words}: {', '.join(percent(one[kind]) for one in layers.values())}" for kind, words in TRENDS.items())
    return [
        judged(
            "single.error-norm",
            verdict(without, len(layers), 1),
            f"{'; '.join(told)} ({', '.join(layers)})",
            most=in_fraction(MOST),
            trends="; ".join(TRENDS.values()),
        )
    ]


def error_norms(memory: Engine, layer: str, at_step: int | None = None) -> NDArray[np.float64]:
    """float64[T]: ||e_t|| of each slot, as the layer's weight has it after `at_step` updates, None for all of them.

    A slot of a later step has brought nothing yet: 0. Raises NotFound where no values were recorded.
    """
    slots = np.arange(layer_info(memory, layer).slots)
    norms = np.abs(memory.coefficients(layer, slots, at_step))
    for block in _blocks(slots):
        norms[block] *= np.linalg.norm(memory.values(layer, block).astype(np.float64), axis=1)
    return norms


def error_norm_sums(
    memory: Engine, layer: str, query_set: str, at_step: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """int64[G], the labels in ascending order, and float64[n, G], the sums of each row of a query set.

    Raises NotFound where the layer, its values or the query set are missing.
    """
    queries, info = memory.query_set(query_set, layer).queries, layer_info(memory, layer)
    assert queries is not None, "the layer was named"
    slots = np.arange(info.slots)
    labels = memory.slots(slots, info.space)["label"]
    classes, numbers = np.unique(np.asarray(labels), return_inverse=True)
    # Slots that share a key are scored once: `first` has that key, and the norms of all of them weigh in it.
    _, first, rows = np.unique(memory.key_rows(layer, slots), return_index=True, return_inverse=True)
    cells = np.bincount(rows * len(classes) + numbers, error_norms(memory, layer, at_step), len(first) * len(classes))
    weights = cells.astype(np.float64).reshape(len(first), len(classes))
    sums = _of_one_sign(memory, layer, first, weights, queries)
    return classes, _scanned(memory, layer, first, weights, queries) if sums is None else sums


def _of_one_sign(
    memory: Engine, layer: str, slots: NDArray[np.int64], weights: NDArray[np.float64], queries: NDArray[np.float32]
) -> NDArray[np.float64] | None:
    """Where neither keys nor queries are negative, no score is: weighted key sums, and one product. Else None."""
    if queries.min() < 0:
        return None
    sums = np.zeros((weights.shape[1], queries.shape[1]))
    for block in _blocks(np.arange(len(slots))):
        keys = memory.keys(layer, slots[block])
        if keys.min() < 0:
            return None
        sums += weights[block].T @ keys
    products: NDArray[np.float64] = queries @ sums.T
    return products


def _scanned(
    memory: Engine, layer: str, slots: NDArray[np.int64], weights: NDArray[np.float64], queries: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Every score, in float32, and what they add up to in float64."""
    sums = np.zeros((len(queries), weights.shape[1]))
    for block in _blocks(np.arange(len(slots))):
        scores = queries @ memory.keys(layer, slots[block]).T
        sums += np.abs(scores, out=scores) @ weights[block]
    return sums


def _blocks(numbers: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    return (numbers[start : start + _ROWS] for start in range(0, len(numbers), _ROWS))
