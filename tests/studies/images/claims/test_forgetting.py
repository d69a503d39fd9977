from __future__ import annotations

import numpy as np
import pytest

from dualform_studies.images.claims.forgetting import forgetting_claims
from dualform_studies.images.continual.page import interference_in_words
from dualform_studies.pages.claims import FAILS, HOLDS, IN_PART


def first_of(count: int) -> np.ndarray:
    """The first so many of 1,000 test images are recognised."""
    return np.arange(1000) < count


@pytest.mark.parametrize(
    ("after", "end", "masked", "forgotten", "back"),
    [
        (970, 470, 965, HOLDS, HOLDS),
        (970, 710, 960, HOLDS, HOLDS),
        (970, 711, 959, IN_PART, IN_PART),
        (970, 470, 720, HOLDS, IN_PART),
        (970, 470, 719, HOLDS, FAILS),
        (970, 962, 961, IN_PART, FAILS),
        (970, 963, 970, FAILS, FAILS),
        (960, 970, 965, FAILS, FAILS),
    ],
)
def test_mnist_is_forgotten_and_comes_back_with_the_mask(after: int, end: int, masked: int, forgotten: str, back: str):
    moments = {"after_first": first_of(after), "final": first_of(end), "masked": first_of(masked)}
    claims = forgetting_claims(moments)
    assert [claim.verdict for claim in claims] == [forgotten, back]
    assert f"{after / 10:.1f} % after MNIST, {end / 10:.1f} % at the end" in claims[0].ours
    assert f"{masked / 10:.1f} % with them removed" in claims[1].ours


def test_a_page_without_an_example_of_interference_says_so():
    report = {"interference": {"spoilt": 3, "mistake": [1, 3], "like_the_papers": 0}, "examples": {"interference": {}}}
    assert interference_in_words(report).endswith("One of them is shown.")
    report["examples"] = {"recognised-mnist": {}}
    said = interference_in_words(report)
    assert "So there is no example of interference." in said
    assert said.endswith("of the classes of the paper's, where there are such.")
