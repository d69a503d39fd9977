"""Single predictions: of every layer the passage that it attends to most, and what shares passages and fables draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dualform_studies.networks.command_line import CommandLine, query_set_tokens
from dualform_studies.networks.gpt2.predictions import Hits, Predictions, best_passage, learning
from dualform_studies.networks.gpt2.text import Fables
from dualform_studies.networks.gpt2.training import QUERY_SET
from dualform_studies.pages.folder import Report
from dualform_studies.progress import Progress, or_silent
from dualform_studies.text.passages import cut


def ask_examples(
    memory: CommandLine,
    fables: Fables,
    predictions: Predictions,
    hits: Mapping[str, Hits],
    chosen: Mapping[str, int],
    progress: Progress | None,
) -> list[Report]:
    numbers = list(chosen.values())
    told = [_about(fables, predictions, hits, kind, number) for kind, number in chosen.items()]
    tell = or_silent(progress)
    for done, (layer, own) in enumerate(hits.items(), start=1):
        sums = _sums(memory, fables, predictions, layer, numbers)
        for at, number in enumerate(numbers):
            told[at]["layers"].append(_of_layer(fables, layer, own, number, sums, at))
        tell("asking every layer for its sums", done, len(hits))
    return told


def _about(fables: Fables, predictions: Predictions, hits: Mapping[str, Hits], kind: str, number: int) -> Report:
    row = int(predictions.rows[number])
    said, true = int(predictions.said[number]), int(predictions.true[number])
    first = fables.test.starts[row - row % fables.length]
    return {
        "kind": kind,
        "prediction": number,
        "row": row,
        "read": fables.test.text[first : fables.test.ends[row]],
        "said": fables.word(said),
        "true": fables.word(true),
        "probability": float(predictions.probabilities[number, said]),
        "probability_true": float(predictions.probabilities[number, true]),
        "passage": best_passage(hits, number),
        "layers": [],
    }


def _sums(memory: CommandLine, fables: Fables, predictions: Predictions, layer: str, numbers: Sequence[int]) -> Any:
    query = query_set_tokens(QUERY_SET, predictions.rows[list(numbers)].tolist(), fables.length)
    return memory.ask(
        "group-sum", "--layer", layer, "--query", query, "--by", "sample,fable", "--abs", "--where", learning(fables)
    )  # fmt: skip


def _of_layer(fables: Fables, layer: str, own: Hits, number: int, sums: Any, at: int) -> Report:
    place = int(own.place[number, 0])
    passage, fable = int(own.passage[number, 0]), int(fables.fables[place])
    of_fables, of_passages = (_Shares(sums, column, at) for column in ("fable", "sample"))
    leading = of_fables.leading()
    return {
        "layer": layer,
        "place": place,
        "passage": passage,
        "text": vars(cut(fables.train, place)),
        "title": fables.titles[fable],
        "score": float(own.score[number, 0]),
        "share": of_passages.share[passage],
        "times_slots": of_passages.times(passage),
        "fable": fables.titles[leading],
        "fable_times_slots": of_fables.times(leading),
    }


class _Shares:
    """Of the absolute attention of one query, what each group draws, and what it would by the number of its slots."""

    def __init__(self, answer: Any, column: str, at: int) -> None:
        names, group = np.unique([group[column] for group in answer["groups"]], return_inverse=True)
        sums = np.bincount(group, answer["sums"][at])
        counts = np.bincount(group, [group["count"] for group in answer["groups"]])
        self.share: dict[int, float] = dict(zip(names.tolist(), (sums / sums.sum()).tolist(), strict=True))
        self._by_count = dict(zip(names.tolist(), (counts / counts.sum()).tolist(), strict=True))

    def times(self, name: int) -> float:
        return float(self.share[name] / self._by_count[name])

    def leading(self) -> int:
        """The group that draws most for the number of its slots."""
        return max(self.share, key=self.times)
