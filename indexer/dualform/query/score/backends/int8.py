"""Looks for the best rows in eight bits, a quarter of the bytes of float32; scores everything else as NumPy does."""

from __future__ import annotations

from dualform import kernels
from dualform.query.score.backends.numpy import NumpyBackend
from dualform.query.search.codes import CodesCache
from dualform.query.search.screen import CompiledScreen


class Int8Backend(NumpyBackend):
    name = "int8"

    def __init__(self) -> None:
        kernels.compiled()
        self.screen = CompiledScreen(CodesCache())
