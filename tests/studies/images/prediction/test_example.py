from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dualform.answers import GroupSums
from dualform.questions import QuerySetExamples
from dualform_studies.images.data.datasets import Dataset, Images
from dualform_studies.images.data.split import every_row
from dualform_studies.images.prediction.example import choose_interference
from dualform_studies.images.training.succession import Verdict

LABELS = np.array([1, 1, 1, 2, 1, 2])


def made_up(name: str) -> Dataset:
    images = Images(np.zeros((6, 4), dtype=np.uint8), LABELS)
    return Dataset(name, images, images, 2, [str(label) for label in range(4)], every_row(6))


@pytest.fixture
def judged() -> Verdict:
    """Rows 0, 1, 3 and 4 are spoilt and mended; row 2 is not mended, row 5 not spoilt."""
    given = {
        "after_first": np.array([1, 1, 1, 2, 1, 2]),
        "final": np.array([3, 3, 3, 3, 0, 2]),
        "masked": np.array([1, 1, 0, 2, 1, 2]),
    }
    pair = made_up("old"), made_up("new")
    return Verdict(pair, {moment: {"old": classes, "new": classes} for moment, classes in given.items()})


class Attention:
    """Gives each row its attention to the intruder's class 3, and 10 to the first dataset's class 1."""

    def __init__(self, *to_intruder: float) -> None:
        self.to_intruder = np.array(to_intruder)

    def group_sum(self, layer: str, queries: QuerySetExamples, **_: Any) -> GroupSums:
        own = self.to_intruder[list(queries.examples or ())]
        groups = (("new", 0), ("new", 3), ("old", 1))
        sums = np.stack([own * 0, own, own * 0 + 10], axis=1)
        return GroupSums(groups, sums, np.array([1, 1, 1]), ("dataset", "label"))


def test_interference_is_spoilt_by_the_second_dataset_and_mended_by_the_mask(judged: Verdict):
    assert judged.interfered().tolist() == [0, 1, 3, 4]
    assert judged.interfered((1, 3)).tolist() == [0, 1]
    assert judged.interfered((2, 0)).tolist() == []


def test_the_mistake_asked_for_goes_before_a_clearer_other_one(judged: Verdict):
    query = choose_interference(Attention(11, 12, 99, 50, 0, 99), judged, "layer-2", (1, 3))  # type: ignore[arg-type]
    assert query is not None
    assert (query.row, query.label, query.given) == (1, 1, 3)


def test_where_no_image_is_mistaken_so_the_clearest_of_all_is_taken(judged: Verdict):
    query = choose_interference(Attention(11, 12, 99, 50, 0, 99), judged, "layer-2", (2, 0))  # type: ignore[arg-type]
    assert query is not None
    assert (query.row, query.label, query.given) == (3, 2, 3)
