"""Reader of IDX files, the format of MNIST's originals (http://yann.lecun.com/exdb/mnist, "The IDX file format").

Two zero bytes, one byte for the type (8: unsigned byte), one for the number of dimensions, each dimension as a
big-endian 32-bit number, then the data, row by row.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dualform.errors import Damaged

_UNSIGNED_BYTE = 8


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes, gzipped where the name ends in .gz.

    Raises Damaged, naming the file, where it cannot be decompressed, is no IDX file of so many dimensions, or is
    shorter or longer than its header says.
    """
    content = file_content(path)
    if len(content) < 4:
        raise _damaged(path, f"holds {len(content)} bytes, too few for an IDX header")
    zeros, kind, depth = struct.unpack(">HBB", content[:4])
    if (zeros, kind) != (0, _UNSIGNED_BYTE):
        raise _damaged(path, f"is not an IDX file of unsigned bytes: it starts with {content[:4].hex(' ')}")
    if depth != dimensions:
        raise _damaged(path, f"has {depth} dimensions instead of {dimensions}")
    header = 4 + 4 * depth
    if len(content) < header:
        raise _damaged(path, "is cut short inside its header")
    shape = struct.unpack(f">{depth}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise _damaged(path, f"has {len(content) - header} bytes of data, but its header announces {math.prod(shape)}")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def file_content(path: Path) -> bytes:
    """What a file holds, decompressed where its name ends in .gz. Raises Damaged where it cannot be decompressed."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, f"cannot be decompressed ({error})") from None


def _damaged(path: Path, what: str) -> Damaged:
    return Damaged(f"{path} {what}.", hint="Remove the file and fetch it again.")
