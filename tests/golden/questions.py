"""What is asked of each memory, and the arrays of each answer.

Every answer becomes a mapping of names to arrays. A refusal is an answer: {"refused": 1}.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import dualform
from dualform.errors import DualformError
from tests.golden import trainings
from tests.golden.trainings import TRAININGS, Training

Arrays = dict[str, NDArray[Any]]
Ask = Callable[[], Arrays]


def answers(name: str, folder: Path) -> dict[str, Arrays]:
    """Records one training in `folder`, asks every question, and returns question -> arrays."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training = TRAININGS[name](folder)
        with dualform.open(folder) as memory:
            return {f"{name}/{question}": _answer(ask) for question, ask in _questions(name, training, memory, folder)}


def _answer(ask: Ask) -> Arrays:
    try:
        return ask()
    except DualformError:
        return {"refused": np.ones(1, np.int8)}


def _questions(name: str, training: Training, memory: Any, folder: Path) -> Iterator[tuple[str, Ask]]:
    yield "weights as trained", lambda: {n: _array(p) for n, p in training.model.state_dict().items()}
    yield "stored/files", lambda: _files(folder)
    if not training.keys:
        yield from _of_rerun(folder)
        return
    for space in memory.info().slots:
        yield f"stored/columns of {space}", lambda space=space: _columns(memory, space)
    yield "stored/steps", lambda: _table(memory.sql("SELECT * FROM steps ORDER BY step"))
    yield "sql", lambda: _table(memory.sql("SELECT dataset, label, count(*) n FROM slots GROUP BY ALL ORDER BY ALL"))
    for layer in training.layers:
        yield f"stored/keys of {layer}", lambda layer=layer: {"keys": memory.keys(layer)}
        yield f"stored/values of {layer}", lambda layer=layer: {"values": memory.values(layer)}
        for question, ask in _of_layer(training, memory, layer):
            yield f"{layer}/{question}", ask
    yield from _of_network(training, memory, folder)


def _of_layer(training: Training, memory: Any, layer: str) -> Iterator[tuple[str, Ask]]:
    def queries() -> Any:
        return memory.query_set("test", layer).queries[:3]

    some, step, by = training.filters[0], 5, training.columns
    (examples,) = (own.examples for own in memory.info().query_sets if own.name == "test")
    second = "test/1" if len(memory.query_set("test", layer).queries) == examples else "test/0:1"
    target = {"score": "contribution", "target": "1-0", "allow_inexact": True}
    for name, score in (("signed", "dot"), ("abs", "abs"), ("cosine", "cosine")):
        yield f"topk {name}", lambda s=score: _hits(memory.topk(layer, queries(), k=7, score=s))
        yield (
            f"topk {name} of label",
            lambda s=score: _hits(memory.topk(layer, queries(), k=2, by="label", where=some, score=s)),
        )
    for number, where in enumerate(training.filters):
        yield f"topk filter {number}", lambda w=where: _hits(memory.topk(layer, second, k=5, where=w))
    yield "topk contribution", lambda: _hits(memory.topk(layer, queries(), k=7, **target))
    yield "sum", lambda: _sums(memory.group_sum(layer, queries(), by))
    yield "sum by position", lambda: _sums(memory.group_sum(layer, queries(), "position", where=some))
    yield "sum abs", lambda: _rounded(_sums(memory.group_sum(layer, queries(), by, score="abs")))
    yield "sum contribution", lambda: _sums(memory.group_sum(layer, queries(), by, **target))
    yield "sum of 2 largest", lambda: _sums(memory.group_sum(layer, queries(), "sample", k=2))
    yield "distribution", lambda: _distribution(memory.distribution(layer, queries(), where=some))
    outputs = {
        "output": {}, "output filter": {"where": some}, "output at step": {"at_step": step},
        "output without W_0": {"initial": False}, "output softmax": {"kernel": "softmax", "temperature": 2.0},
    }  # fmt: skip
    for question, own in outputs.items():
        yield (
            question,
            lambda own=own: {"values": np.asarray(memory.output(layer, queries(), allow_inexact=True, **own))},
        )
    yield "contributions", lambda: _contributions(memory.contributions(layer, queries(), "label", allow_inexact=True))
    if training.traced:
        yield "topk gradient", lambda: _hits(memory.topk(layer, "traced", k=5, score="gradient"))
        yield "sum gradient", lambda: _sums(memory.group_sum(layer, "traced", "label", where=some, score="gradient"))


def _of_network(training: Training, memory: Any, folder: Path) -> Iterator[tuple[str, Ask]]:
    some, step = training.filters[0], 5
    whats = {"weights": {}, "weights filter": {"where": some}, "weights at step": {"at_step": step}}
    for question, own in whats.items():
        yield question, lambda own=own: _weights(memory.weights(allow_inexact=True, **own))
    yield "verify", lambda: _reconstructions(memory.verify())
    yield (
        "cancellation",
        lambda: {n: np.array([v]) for n, v in memory.cancellation(some, allow_inexact=True).figures.items()},
    )
    yield "slots", lambda: _table(memory.slots([3, 0, 11], next(iter(memory.info().slots))))
    yield "query set", lambda: _query_set(memory.query_set("test", training.layers[-1]))
    yield (
        "queries of a model",
        lambda: {n: np.asarray(q.rows) for n, q in memory.queries(training.model, training.inputs).items()},
    )
    if memory.info().previews:
        yield "previews", lambda: _previews(memory.previews([3, 1, 39], "a"))
    if not training.traced:
        return
    yield "topk gradient of all layers", lambda: _hits(memory.topk("*", "traced", k=5, score="gradient"))
    for method in ("first-order", "path"):
        yield (
            f"ledger {method}",
            lambda m=method: _ledger(dualform.ledger(folder, training.model, _influence(training, m))),
        )


def _influence(training: Training, method: Any) -> dualform.Influence:
    loss = nn.CrossEntropyLoss(reduction="none")
    # One example: a ledger of several needs every parameter to belong to a layer.
    return dualform.Influence("asked", training.inputs[:1], training.labels[:1], loss, by="label", method=method)


def _of_rerun(folder: Path) -> Iterator[tuple[str, Ask]]:
    """The training of `trainings.rerun` once more, which answers."""
    queries = np.linspace(-1, 1, 14, dtype=np.float32).reshape(2, 7)
    asked = [
        dualform.TopK("4", dualform.Vectors(queries), 5),
        dualform.GroupSum("4", dualform.Vectors(queries), by=("dataset", "label")),
    ]
    model = trainings.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Rerun(model, optimizer, folder, asked) as rerun:
        trainings.steps_of(rerun, model, optimizer, trainings.vectors(6))
    hits, sums = rerun.answers()
    yield "topk", lambda: _hits(hits)
    yield "sum", lambda: _sums(sums)


def _array(values: Any) -> NDArray[Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach()
        values = values.view(torch.int16) if values.dtype == torch.bfloat16 else values
        return values.numpy()
    return np.asarray(values)


def _text(value: Any) -> NDArray[Any]:
    return np.frombuffer(json.dumps(value, default=str).encode(), np.uint8)


def _hits(hits: Any) -> Arrays:
    found = {"slots": hits.ids, "scores": hits.flat_scores, "counts": hits.counts}
    return {**found, "groups": _text(hits.groups), "matching": np.array([hits.scan.slots_matching])}


def _sums(sums: Any) -> Arrays:
    found = {"groups": _text(sums.groups), "sums": sums.sums, "counts": sums.counts}
    return found if sums.numbers is None else {**found, "numbers": sums.numbers}


def _rounded(sums: Arrays) -> Arrays:
    """Absolute sums are exact to 1e-6 relative; what a float32 holds of that is kept."""
    return {**sums, "sums": np.float32(sums["sums"])}


def _distribution(found: Any) -> Arrays:
    names = ("ranks", "scores", "cumulative", "totals", "effective_slots")
    return {name: np.asarray(getattr(found, name)) for name in names}


def _contributions(found: Any) -> Arrays:
    names = ("sums", "counts", "initial", "bias", "residual")
    return {"groups": _text(found.groups), **{name: np.asarray(getattr(found, name)) for name in names}}


def _ledger(found: Any) -> Arrays:
    names = ("sums", "counts", "initial", "final", "residual")
    return {"groups": _text(found.groups), **{name: np.asarray(getattr(found, name)) for name in names}}


def _weights(found: Mapping[str, Any]) -> Arrays:
    return {name: _array(found[name]) for name in found}


def _reconstructions(found: Any) -> Arrays:
    return {
        name: np.array([np.nan if own.reconstruction_error is None else own.reconstruction_error, own.exact], float)
        for name, own in found.reconstructions.items()
    }


def _query_set(found: Any) -> Arrays:
    parts = {"labels": found.labels, "outputs": found.outputs, "queries": found.queries}
    return {name: np.asarray(part) for name, part in parts.items() if part is not None}


def _previews(found: Any) -> Arrays:
    return {
        "known": found.known,
        "images": _text([image and hashlib.sha256(image).hexdigest() for image in found.images]),
    }


def _table(found: Any) -> Arrays:
    return {name: _text(np.ma.getdata(column).tolist()) for name, column in _masked(found)}


def _masked(found: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    for name, column in found.items():
        yield name, column
        if np.ma.is_masked(column):
            yield f"{name} is missing", np.ma.getmaskarray(column)


def _columns(memory: Any, space: str) -> Arrays:
    first = next(iter(memory.info().slots))
    table = "slots" if space == first else f'"{space}"'
    return _table(memory.sql(f"SELECT * FROM {table} ORDER BY slot"))


def _files(folder: Path) -> Arrays:
    """The checksums of the files of numbers; tables and the manifest, which hold times, are compared as columns."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".faiss", ".npy"))
    return {
        str(path.relative_to(folder)): np.frombuffer(hashlib.sha256(path.read_bytes()).digest(), np.uint8)
        for path in files
    }
