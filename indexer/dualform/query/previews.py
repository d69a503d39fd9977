"""What samples looked like, from the preview sets of a memory."""

from __future__ import annotations

import time
from dataclasses import replace

from dualform.answers import Previews
from dualform.errors import NotFound
from dualform.query.view import View
from dualform.questions import PreviewLookup
from dualform.store.previews.stored_previews import StoredPreviewSet


def previews(view: View, question: PreviewLookup) -> Previews:
    """Raises NotFound if there is no such preview set, BadInput for more than an answer holds, Damaged for a file."""
    began = time.perf_counter()
    if question.query_set is None:
        dataset = question.dataset or ""
        preview_set = view.cache.get(("preview_set", dataset), lambda: view.snapshot.preview_set(dataset))
    else:
        preview_set = view.cache.get(
            ("query set preview set", question.query_set), lambda: _of_query_set(view, question.query_set or "")
        )
    found = preview_set.look(question.samples, view.bounds.answer_bytes)
    return replace(found, scan=view.scan(began))


def _of_query_set(view: View, name: str) -> StoredPreviewSet:
    found = view.snapshot.query_set(name).preview_set
    if found is None:
        known = ", ".join(own.name for own in view.snapshot.query_sets.values() if own.previews) or "none"
        raise NotFound(
            f"Query set {name!r} was recorded without previews.",
            hint=f"Query sets with previews: {known}.",
            field="query_set",
        )
    return found
