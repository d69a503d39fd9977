"""The compiled loops, as they lie beside this file: found, loaded, and told what they take."""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p
from pathlib import Path

from dualform.errors import BadInput
from dualform.kernels.arguments import AdamUpdate, Candidates, CodeProducts, KeyCodes, QueryCodes, Runs, Scores

ABI = 23
"""As dualform_abi() in codes.c: what was built from other sources is not called."""
FORMS = ("portable", "avx2", "avx512vnni")
"""As in kernels.h, each for processors that run the former ones, too."""
VARIABLE = "DUALFORM_LOOPS"
"""The environment variable that names a form, or "none" for doing without the loops."""


def wanted_form() -> str | None:
    """What the environment asks for; None for the fastest form. Raises BadInput for what is no form."""
    name = os.environ.get(VARIABLE) or None
    if name not in (None, "none", *FORMS):
        raise BadInput(
            f"{VARIABLE} is {name!r}, which is no form of the compiled loops.",
            hint=f"Forms: {', '.join(FORMS)}, and none to do without the loops.",
            field=VARIABLE,
        )
    return name


def load(path: Path | None = None) -> ctypes.CDLL | str:
    """The loops of `path`, or of the file that installing makes; or why there are none."""
    path = path or Path(__file__).with_name("_kernels.dll" if sys.platform == "win32" else "_kernels.so")
    if not path.exists():
        return "dualform was installed without a C compiler"
    try:
        loops = ctypes.CDLL(str(path))
    except OSError as error:
        return f"they cannot be loaded ({error})"
    return _typed(loops) if loops.dualform_abi() == ABI else f"{path.name} was compiled from other sources"


def _typed(loops: ctypes.CDLL) -> ctypes.CDLL:
    address, count = c_void_p, c_int64
    codes, queries, candidates = POINTER(KeyCodes), POINTER(QueryCodes), POINTER(Candidates)
    rows = (address, count, count, count)
    takes = {
        "use": (c_int32,),
        "quantise": (codes, *rows),
        "screen": (codes, queries, candidates, count, count),
        "products": (codes, queries, POINTER(CodeProducts), count, count),
        "settle": (POINTER(candidates), count, count, address),
        "canonical": (address, address, address, count, count, address, address),
        "canonical_rows": (address, count, address, count, address, address),
        "sizes": (address, address, count, count, address),
        "sum_runs": (POINTER(Runs), POINTER(Scores), address, address),
        "weigh": (address, address, address, count, count, *[address] * 4),
        "add_pairs": (*[address] * 4, c_float, count, address, address),
        "add_runs": (address, address, count, count, address, address, address),
        "project": (*rows, address, address),
        "project_all": (address, count, address),
        "outer": (*rows, address, address, count, address, address, address),
        "entries": (address, count, count, address, address, count, address, count, address, address),
        "add_slots": (address, count, address, address, address, address),
        "distances": (address, address, address, address, address, count, address),
        "compare": (address, address, address, address, count, address, address),
        "adam": (POINTER(AdamUpdate), count, *[address] * 7),
    }
    for name, types in takes.items():
        function = getattr(loops, f"dualform_{name}")
        function.argtypes, function.restype = types, c_int32 if name in ("settle", "outer", "add_slots") else None
    return loops
