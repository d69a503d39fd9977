from __future__ import annotations

import pytest

from dualform_studies.pages.words import listed, percent


def test_a_share_is_told_in_per_cent():
    assert (percent(0.97449), percent(0.5, "g"), percent(1 / 3, ".3g")) == ("97.4 %", "50 %", "33.3 %")


@pytest.mark.parametrize(
    ("words", "told"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_words_are_listed_as_in_a_sentence(words: list[str], told: str):
    assert listed(words) == told
