"""PNGs of eight bits, grey or RGB, by the standard library's zlib (the PNG specification, third edition)."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from dualform.answers.contents import PNG

_GREY, _RGB = 0, 2
"""Colour types."""


def encoded(image: NDArray[np.uint8]) -> bytes:
    """uint8[height, width] of grey, or [height, width, 3] of RGB, neither side 0, as a PNG."""
    height, width = image.shape[:2]
    lines = np.zeros((height, 1 + image[0].size), dtype=np.uint8)  # each line begins with its filter: none
    lines[:, 1:] = image.reshape(height, -1)
    colour = _GREY if image.ndim == 2 else _RGB
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    return PNG + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(lines.tobytes())) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
