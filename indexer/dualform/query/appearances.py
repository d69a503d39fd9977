"""What samples looked like, from the galleries of a memory."""

from __future__ import annotations

import time
from dataclasses import replace

from dualform.answers import Appearances
from dualform.errors import NotFound
from dualform.query.view import View
from dualform.questions import AppearanceLookup
from dualform.store.galleries.stored_gallery import StoredGallery


def appearances(view: View, question: AppearanceLookup) -> Appearances:
    """Raises NotFound where there is no such gallery, BadInput for more than an answer holds, Damaged for a file."""
    began = time.perf_counter()
    if question.probe is None:
        dataset = question.dataset or ""
        gallery = view.cache.get(("gallery", dataset), lambda: view.snapshot.gallery(dataset))
    else:
        gallery = view.cache.get(("probe gallery", question.probe), lambda: _of_probe(view, question.probe or ""))
    found = gallery.look(question.samples, view.bounds.answer_bytes)
    return replace(found, scan=view.scan(began))


def _of_probe(view: View, name: str) -> StoredGallery:
    found = view.snapshot.probe(name).gallery
    if found is None:
        known = ", ".join(own.name for own in view.snapshot.probes.values() if own.gallery) or "none"
        raise NotFound(
            f"probe {name!r} has no gallery.", hint=f"Probes that were taken with one: {known}.", field="probe"
        )
    return found
