"""The inner product of key and query over both their lengths: what they have in common, however long they are.

    x . q / (|x| |q|),    0 where either is of no length

All of it in float64, the lengths canonical like the products (canonical.py): a key or a query that is taken 2^n times
as long gives the same bits. Where the inner product of the paper's equation 13 also says how long a key is, a cosine
says its direction alone. Keys of one direction have one cosine, of which float64 may round the last bits apart; so
cosines rank by the float32 that is reported, and then by slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dualform.query.score.backends import Backend
from dualform.query.score.bound import norms
from dualform.query.score.canonical import divisors
from dualform.query.score.rescoring import score_rows
from dualform.query.search.cosine_scorer import CosineScorer
from dualform.query.search.searcher import Searcher
from dualform.query.search.searchers import ScanSearcher
from dualform.query.sums.grouping import Grouping, RowDivisors


class Cosine:
    name = "cosine"

    def searchers(self, backend: Backend) -> Sequence[Searcher]:
        return [ScanSearcher(CosineScorer.of)]

    def sums(self, grouping: Grouping, queries: NDArray[np.float32]) -> NDArray[np.float64]:
        """sum_t x_t . q / (|x_t| |q|) = (sum_t x_t / |x_t|) . q / |q|: of each group the sum of its keys at length 1.

        With so many groups that their key sums are not kept, x_t . q / |x_t| is added in slot order. Either way has the
        same bits however it is asked for. The two, and what a rerun adds up window by window, lie within
        (T + 32) 2^-53 for each of a group's T slots of one another.
        """
        lengths = RowDivisors("lengths", divisors(grouping.rows().norms))
        if grouping.many:
            sums = grouping.by_slot(queries, divisors=lengths)
        else:
            sums = score_rows(grouping.key_sums(lengths).sums, queries)
        return sums / divisors(norms(queries))[:, None]
