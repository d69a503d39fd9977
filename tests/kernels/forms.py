"""The compiled loops in one form after the other: of the library that is installed, or of one that a test compiled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dualform import kernels
from dualform.kernels import loader

COMPILED = "DUALFORM_TESTED_LOOPS"
"""The environment variable by which tests/kernels/test_builds.py names the library that it compiled."""

EXAMPLES = 4 if COMPILED in os.environ else 20
"""Of a property, for each form."""

FORMS = pytest.mark.parametrize("form", loader.FORMS)

if COMPILED in os.environ:
    compiled = loader.load(Path(os.environ[COMPILED]))
    assert not isinstance(compiled, str), compiled
    kernels.library = lambda: compiled
    kernels.use(None)


@contextmanager
def using(form: str) -> Iterator[None]:
    """Skips the test where this processor does not run the form, or nothing was compiled."""
    if form not in kernels.forms():
        pytest.skip(f"this processor runs no loops of the form {form}, or none were compiled")
    former = kernels.form()
    kernels.use(form)
    try:
        yield
    finally:
        kernels.use(former)
