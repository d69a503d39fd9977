"""Section 5.5 and appendix C.2: a character-level language model of "Aesop's Fables"."""

from __future__ import annotations

from dualform_studies.assignment import Assignment
from dualform_studies.pages.folder import Report
from dualform_studies.text.published import AESOP
from dualform_studies.text.recipe import Recipe
from dualform_studies.text.study import LanguageStudy, run_language_study

_STUDY = LanguageStudy(
    name="aesop",
    corpus="aesop",
    title="A character-level language model of Aesop's Fables (section 5.5, Tables 3 to 5)",
    presets={
        # A quarter of the paper's units, and whole passes: tokens read once more than the rest would lead for that
        # alone. The keys take 5.7 GB.
        "laptop": Recipe(embedding=64, projection=256, hidden=256, lr=3e-3, clip=1.0, batch=64, steps=24 * 18),
        "paper": Recipe(embedding=64, projection=1024, hidden=1024, lr=1e-3, clip=1.0, batch=64, steps=5000),
    },
    tables=AESOP,
    paper={
        "tokens of the training text": ("about 185,000 in the book", "119,933 (inferred)"),
        "tokens that a pass reads": ("", "115,200 (inferred)"),
        "different tokens": ("107", ""),
        "units of the LSTM": ("1,024", "1,024 (by the code)"),
        "streams of so many tokens a step": ("", "64 of 100 (by the code)"),
        "updates": ("", "5,000 (by the code)"),
    },
)


def run_aesop(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train on the fables, and ask with Tables 3 to 5 of the paper; see `run_language_study`."""
    return run_language_study(_STUDY, assignment, recipe)
