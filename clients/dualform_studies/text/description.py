"""What was trained on what, as report.json says it."""

from __future__ import annotations

import hashlib

import torch

from dualform_studies.pages.folder import Report
from dualform_studies.text.network import LanguageModel
from dualform_studies.text.runs import Task


def describe_corpus(task: Task) -> Report:
    steps, recipe = task.of_a_pass, task.recipe
    lacking = float(task.vocabulary.lacks(task.test).mean())
    return {
        "name": task.corpus.name,
        "unit": task.corpus.unit,
        "trained_on": task.corpus.train_split,
        "note": task.corpus.note,
        "train_tokens": len(task.train),
        "test_tokens": len(task.test),
        "vocabulary": len(task.vocabulary),
        "unknown": float((task.test.ids == task.vocabulary.unknown).mean() - lacking),
        "lacking": lacking,
        "chunks_of_a_pass": steps,
        "tokens_of_a_pass": steps * recipe.batch * recipe.unroll,
        "tokens_read": min(steps, recipe.steps) * recipe.batch * recipe.unroll,
        "passes": recipe.steps / steps,
        "digest": digest_of(task),
    }


def digest_of(task: Task) -> str:
    """Of the training text and the tokens' numbers, so that passages are never cut from another."""
    parts = (task.corpus.train, *task.vocabulary.words)
    return hashlib.sha256("\0".join(parts).encode("utf-8")).hexdigest()


def same_weights(one: LanguageModel, other: LanguageModel) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in ours)
