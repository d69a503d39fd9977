"""What codes say of the products of rows and queries, each times a number of its row, and how far off that may be.

Shapes: n queries, R stored rows, d of a row. See codes.py; kernels/screen.c does the arithmetic.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.kernels import arguments
from dualform.query.search.codes import quantise_queries
from dualform.query.search.codes_cache import CodesCache
from dualform.query.search.screen import FEW_QUERIES, for_each
from dualform.query.view import Check
from dualform.store.rows import Rows


def code_products(
    rows: Rows,
    codes: CodesCache,
    queries: NDArray[np.float32],
    of_row: NDArray[np.float32],
    of_query: NDArray[np.float32],
    check: Check,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """float32[n, R], twice: products of stored rows and of queries that can be coded, times float32[R] and float32[n];
    and bounds on how far they are off, which are infinite or NaN where a row's codes say nothing. R counts all rows of
    the sources (`rows.stored_rows`), whatever entries there are.
    """
    coded = quantise_queries(queries, 2 if len(queries) <= FEW_QUERIES else 1).as_argument(False)
    products, errors = np.empty((2, len(queries), len(of_row)), dtype=np.float32)
    made = arguments.CodeProducts(of_row, of_query, products, errors)

    def work(_: int, argument: arguments.KeyCodes, begin: int, end: int) -> None:
        kernels.products(argument, coded, made, begin, end)

    for_each(work, rows.sources, codes, check)
    return products, errors
