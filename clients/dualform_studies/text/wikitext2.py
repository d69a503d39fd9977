"""Section 5.5 and appendix C.3: a word-level language model of WikiText-2."""

from __future__ import annotations

from dualform_studies.assignment import Assignment
from dualform_studies.pages.folder import Report
from dualform_studies.text.published import WIKITEXT2
from dualform_studies.text.recipe import Recipe
from dualform_studies.text.study import LanguageStudy, run_language_study

_STUDY = LanguageStudy(
    name="wikitext2",
    corpus="wikitext-2",
    title="A word-level language model of WikiText-2 (section 5.5, Tables 2, 6 and 7)",
    presets={
        # The paper's network; fewer updates, of smaller batches, as one core can take them. On the valid split the
        # steps are 3 whole passes: tokens read once more than the rest would lead for that alone.
        "laptop": Recipe(
            embedding=200, projection=0, hidden=200, lr=3e-3, clip=0.3, batch=20, unroll=50, steps=3 * 217, dropout=0.5
        ),
        "paper": Recipe(
            embedding=200, projection=0, hidden=200, lr=3e-3, clip=0.3, batch=128, steps=10_000, dropout=0.5
        ),
    },
    tables=WIKITEXT2,
    paper={
        "tokens of the training text": ("about 2 M", "2,088,628 (inferred)"),
        "tokens that a pass reads": ("", "2,086,400 (inferred)"),
        "different tokens": ("33 K", "33,278 (inferred)"),
        "units of the LSTM": ("200", "200 (by the code)"),
        "streams of so many tokens a step": ("", "128 of 100 (by the code)"),
        "updates": ("", "10,000 (by the code)"),
    },
)


def run_wikitext2(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train on the train split, the valid split where that is absent, and ask with Tables 2, 6 and 7 of the paper; see
    `run_language_study`.
    """
    return run_language_study(_STUDY, assignment, recipe)
