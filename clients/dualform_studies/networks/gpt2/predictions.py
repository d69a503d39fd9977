"""What the network predicts at chosen places of the test text, and which training tokens its layers attend to there.

Shapes: q predictions, k hits of each, V tokens of the vocabulary, T tokens of the training text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform_studies.networks.command_line import CommandLine, query_set_tokens
from dualform_studies.networks.gpt2.text import Fables
from dualform_studies.networks.gpt2.training import QUERY_SET
from dualform_studies.pages.folder import Report
from dualform_studies.progress import Progress, or_silent

Ints = NDArray[np.int64]

EMBEDDINGS = ("transformer.wte", "transformer.wpe")
"""Their keys are numbers of tokens and of places: each scores 1 with its own, and all of these alike."""
HEAD = "lm_head"
BEST = 10
"""Hits of each prediction and layer."""
_FIRST = 16
"""Tokens of a passage that come before the first prediction that is asked about, where it is long enough."""


@dataclass(frozen=True, eq=False)
class Predictions:
    rows: Ints
    """[q]: tokens of the test text that were read last, which are the rows of the query set."""
    logits: NDArray[np.float64]
    """[q, V], as `dualform output` gives them."""
    true: Ints
    """[q]: the token that follows."""

    @property
    def said(self) -> Ints:
        """[q]: the token that the network thinks likeliest."""
        return np.asarray(self.logits.argmax(1), dtype=np.int64)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """[q, V]."""
        powers = np.exp(self.logits - self.logits.max(1, keepdims=True))
        return np.asarray(powers / powers.sum(1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Hits:
    """Of one layer, best first; each [q, k]."""

    place: Ints
    """The training token that was read."""
    passage: Ints
    position: Ints
    """In its passage."""
    score: NDArray[np.float64]


def first_asked(fables: Fables) -> int:
    """The place in a passage of the first prediction that may be asked about."""
    return min(_FIRST, fables.length // 2)


def chosen_rows(fables: Fables, count: int) -> Ints:
    """`count` places, evenly along the test text, each with some tokens before it in its passage, and one after it."""
    rows = np.arange(fables.passages(fables.test).size)
    rows = rows[(rows % fables.length >= first_asked(fables)) & (rows % fables.length < fables.length - 1)]
    return np.asarray(rows[np.unique(np.linspace(0, len(rows) - 1, count).round().astype(int))], dtype=np.int64)


def learning(fables: Fables) -> str:
    """The mask that leaves slots that learned something: the last token of a passage has no next one to predict."""
    return f"position < {fables.length - 1}"


def ask_predictions(memory: CommandLine, fables: Fables, rows: Ints) -> Predictions:
    answer = memory.ask("output", "--layer", HEAD, "--query", query_set_tokens(QUERY_SET, rows.tolist(), fables.length))
    return Predictions(rows, np.array(answer["outputs"]), fables.test.ids[rows + 1])


def beside_network(said: Ints, logs: NDArray[np.float32]) -> Report:
    """For what share of the predictions `said` [q] is likeliest by the network's own log probabilities [q, V], too; and
    of how many several tokens are, for under autocast it rounds them."""
    likeliest = logs == logs.max(1, keepdims=True)
    return {
        "as_the_network": float(likeliest[np.arange(len(said)), said].mean()),
        "several_likeliest": float((likeliest.sum(1) > 1).mean()),
    }


def ask_hits(
    memory: CommandLine, fables: Fables, layers: Sequence[str], rows: Ints, progress: Progress | None
) -> dict[str, Hits]:
    """By layer."""
    found, tell = {}, or_silent(progress)
    for done, layer in enumerate(layers, start=1):
        query = query_set_tokens(QUERY_SET, rows.tolist(), fables.length)
        answer = memory.ask(
            "topk", "--layer", layer, "--query", query, "-k", str(BEST), "--where", learning(fables)
        )  # fmt: skip
        found[layer] = _hits(answer["hits"], len(rows))
        tell("asking every layer for its passages", done, len(layers))
    return found


def _hits(hits: Sequence[Mapping[str, Any]], queries: int) -> Hits:
    def column(name: str) -> NDArray[Any]:
        return np.array([hit[name] for hit in hits]).reshape(queries, -1)

    return Hits(column("place"), column("sample"), column("position"), column("score"))


def best_passage(hits: Mapping[str, Hits], prediction: int) -> int:
    """The passage that most of the best hits of all layers stand in; the first of several."""
    numbers, counts = np.unique(np.concatenate([own.passage[prediction] for own in hits.values()]), return_counts=True)
    return int(numbers[counts.argmax()])
