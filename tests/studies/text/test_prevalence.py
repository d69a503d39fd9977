"""Which other queries of a form the test text has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dualform_studies.text.corpora import Corpus
from dualform_studies.text.forms import forms_of
from dualform_studies.text.prevalence import asked_of, samples_of
from dualform_studies.text.prompts import Prompt
from dualform_studies.text.published import AESOP
from dualform_studies.text.ranks import Standard
from dualform_studies.text.recipe import Recipe
from dualform_studies.text.runs import Task
from dualform_studies.text.tokens import Vocabulary

_TEXT = "It ran as fast, as fast, and as fast as it could."
_FAST = [at for at in range(len(_TEXT)) if _TEXT.startswith("ast", at)]


@pytest.mark.parametrize(("origin", "left"), [("test", [_FAST[0], _FAST[2]]), ("train", _FAST)])
def test_the_papers_own_query_is_none_of_the_others(origin: str, left: list[int]) -> None:
    table = replace(AESOP[0], origin=origin)  # type: ignore[arg-type]
    vocabulary = Vocabulary(_TEXT, "character")
    corpus, tokens = Corpus("made up", "character", _TEXT, 0, _TEXT, _TEXT, "all of it"), vocabulary.encode(_TEXT)
    recipe = Recipe(embedding=2, projection=0, hidden=2, lr=0.1, clip=1.0, batch=1, steps=1)
    task = Task(corpus, vocabulary, tokens, tokens, recipe, seed=0)
    prompts = [Prompt("table-3", _TEXT[:20], published=table, place=_FAST[1]), Prompt("prompt-1", "It")]
    samples = samples_of(prompts, {"table-3": Standard.of(table, tokens, corpus)}, task)
    assert [sample.form for sample in samples] == forms_of(3)
    assert [sample.in_the_test_text for sample in samples] == [len(left)] * 2
    assert [tokens.ends[-1] for tokens in asked_of(samples)] == [at + 1 for at in left] * 2
