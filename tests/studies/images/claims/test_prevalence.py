from __future__ import annotations

import numpy as np
import pytest

from dualform_studies.images.claims.prevalence import (
    EVERY,
    MANY,
    OFTEN,
    SOME,
    Prevalence,
    choose_showing,
    over_layers,
    prevalence_claim,
    prevalence_table,
)
from dualform_studies.images.data.datasets import Dataset, Images
from dualform_studies.images.data.split import every_row
from dualform_studies.pages.claims import FAILS, HOLDS, IN_PART

YES, NO = True, False


def flags(*values: bool) -> np.ndarray:
    return np.array(values)


def prevalence(concerned: np.ndarray, seen: np.ndarray, observation: str = "it leads") -> Prevalence:
    return Prevalence(observation, "layer-1", "sixes", concerned, seen)


@pytest.fixture
def dataset() -> Dataset:
    images = Images(np.zeros((4, 4), dtype=np.uint8), np.array([6, 6, 6, 1]))
    return Dataset("made-up", images, images, 2, [str(digit) for digit in range(10)], every_row(4))


def test_only_images_concerned_count():
    one = prevalence(flags(YES, YES, YES, NO), flags(YES, NO, YES, YES))
    assert (one.count, one.total) == (2, 3)
    assert str(one) == "2 of 3 sixes (66.7 %)"
    assert one.plain()["share"] == pytest.approx(2 / 3)


def test_an_observation_of_no_image_makes_no_claim():
    nobody = prevalence(flags(NO, NO), flags(YES, YES))
    assert prevalence_claim("section 1", "It leads.", "one example", nobody) == []
    assert prevalence_table([nobody.plain()]).rows[0][-3:] == (0, 0, "-")


def test_layers_are_joined_as_asked():
    concerned = flags(YES, YES, YES)
    seen = {"layer-0": flags(YES, NO, NO), "layer-1": flags(YES, YES, NO)}
    every = over_layers("it leads", "sixes", concerned, seen, EVERY)
    assert [(one.layer, one.count) for one in every] == [("layer-0", 1), ("layer-1", 2), (EVERY, 1)]
    assert over_layers("it leads", "sixes", concerned, seen, SOME)[-1].count == 2
    assert len(over_layers("it leads", "sixes", concerned, seen)) == 2


@pytest.mark.parametrize(("count", "expected"), [(6, HOLDS), (5, IN_PART), (3, IN_PART), (2, FAILS)])
def test_two_thirds_hold_and_one_third_holds_in_part(count: int, expected: str):
    (claim,) = prevalence_claim(
        "section 1", "It leads.", "one example", prevalence(np.ones(9, dtype=bool), np.arange(9) < count)
    )
    assert claim.verdict == expected
    assert claim.ours == f"{count} of 9 sixes ({100 * count / 9:.1f} %)"


def test_the_query_shown_is_the_first_that_shows_everything(dataset: Dataset):
    sixes, given = flags(YES, YES, YES, NO), np.array([6, 6, 6, 1])
    leads = prevalence(sixes, flags(NO, YES, YES, YES))
    near = prevalence(sixes, flags(YES, NO, YES, YES), "zeros are near")
    choice = choose_showing(dataset, given, [leads, near])
    assert choice is not None
    assert (choice.query.row, choice.query.given) == (2, 6)
    assert choice.how == (
        "Shown is the first of 1, among 3 sixes, of which this holds: it leads (layer-1); zeros are near (layer-1)."
    )


def test_where_nothing_shows_everything_the_query_shows_what_there_is(dataset: Dataset):
    sixes, given = flags(YES, YES, YES, NO), np.array([6, 6, 6, 1])
    leads, never = prevalence(sixes, flags(NO, YES, YES, NO)), prevalence(sixes, np.zeros(4, dtype=bool), "none does")
    choice = choose_showing(dataset, given, [leads, never])
    assert choice is not None
    assert choice.query.row == 1
    assert choice.how.endswith(
        "it leads (layer-1). No such image shows all that is looked for; this one lacks: none does (layer-1)."
    )
    neither = choose_showing(dataset, given, [never])
    assert neither is not None
    assert neither.query.row == 0
    assert neither.how == (
        "Shown is the first of 3 sixes. No such image shows all that is looked for; this one lacks: none does "
        "(layer-1)."
    )
    assert choose_showing(dataset, given, [prevalence(np.zeros(4, dtype=bool), sixes)]) is None


def test_what_the_query_lacks_is_what_is_not_seen_of_it(dataset: Dataset):
    sixes, given = flags(YES, YES, YES, NO), np.array([6, 6, 6, 1])
    leads = prevalence(sixes, flags(NO, YES, YES, NO))
    never = prevalence(sixes, np.zeros(4, dtype=bool), "none does")
    near = prevalence(sixes, flags(NO, YES, NO, YES), "zeros are near")
    choice = choose_showing(dataset, given, [leads, never, near])
    assert choice is not None
    assert choice.query.row == 1
    assert choice.how == (
        "Shown is the first of 1, among 3 sixes, of which this holds: it leads (layer-1); zeros are near (layer-1). No "
        "such image shows all that is looked for; this one lacks: none does (layer-1)."
    )


def test_a_criterion_names_its_own_bounds():
    seen = prevalence(np.ones(20, dtype=bool), np.arange(20) < 1)
    (claim,) = prevalence_claim("section 1", "It leads.", "many", seen, MANY, OFTEN)
    assert claim.verdict == IN_PART
    assert claim.criterion.endswith("holds of at least 1/3 of these test images; in part, of at least 1/20")
