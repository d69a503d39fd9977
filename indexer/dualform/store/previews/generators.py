"""Generators of random numbers, left as they were by what draws from them meanwhile."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def generators_kept() -> Iterator[None]:
    """A dataset may draw random numbers for each item: the generators of the process are as before, afterwards, so that
    a training goes on as it would have.
    """
    python, numpy = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    drawn = None if torch is None else torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch is not None and drawn is not None:
            torch.set_rng_state(drawn)
            if devices is not None:
                torch.cuda.set_rng_state_all(devices)
