"""The kinds of score, one file each. A new score is a new file here and a line in the table below.

Questions, the wire and the command line carry a score by its name and know nothing else of it. A new score provides
what `Kind` below and query/score/score.py list:

- a name;
- which searchers find its best slots (`searchers`), and how sums are made (`sums`).

A score that follows from the inner product alone is a `ProductKind` and provides, besides:

- how an inner product becomes a score (`of`). If that rounds nothing, and moves no two inner products further apart,
  the searchers of rows rank by it as they stand. A score that the compiled screen does not know leaves the screen out;
- when its sums follow from sums of keys (`additive`, which rerun asks as well).

A score that depends on more, as a cosine, brings a searcher of its own, or a scorer that says how far its scores lie
from the canonical ones (query/search/scan.py) to the searcher that scans.

A rerun asks the same of windows of keys, which are memories of their own without values: the best of all windows are
among the best of each, and sums add up.

A score that weighs each slot by more than its key, as its contribution along a direction, is none of these: it differs
between slots that share a key, and its direction travels with the question. See query/directed/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.query.score.backends import Backend
from dualform.query.score.kinds.absolute import Absolute
from dualform.query.score.kinds.cosine import Cosine
from dualform.query.score.kinds.dot import Dot
from dualform.query.score.score import ProductScore, Score
from dualform.query.search.searcher import Searcher
from dualform.query.sums.grouping import Grouping
from dualform.query.sums.key_sums import KeySums


class Kind(Score, Protocol):
    """A score, and how its best slots are found and its sums made. Shapes: n queries, G groups."""

    def searchers(self, backend: Backend) -> Sequence[Searcher]:
        """What finds the best entries, in the order in which they are tried. The last one must decide every query."""
        ...

    def sums(self, grouping: Grouping, queries: NDArray[np.float32]) -> NDArray[np.float64]:
        """float64[n, G]: the sum of each group's scores. Raises Inexact where a key is not finite."""
        ...


@runtime_checkable
class ProductKind(Kind, ProductScore, Protocol):
    """One that follows from the inner product alone. Of others a rerun adds up what `sums` makes of its windows."""

    def additive(self, sums: KeySums, queries: NDArray[np.float32]) -> NDArray[np.bool_]:
        """bool[n, G]: where a group's sum of scores is the score of its sum of keys."""
        ...


_BY_NAME: Mapping[str, Kind] = {score.name: score for score in (Dot(), Absolute(), Cosine())}


def named(name: str) -> Kind:
    """The score of that name. Raises BadInput where there is none."""
    if name not in _BY_NAME:
        names = ", ".join(f'"{known}"' for known in _BY_NAME)
        others = '"contribution" (with target=) or "gradient"'
        raise BadInput(f"Unknown score {name!r}.", hint=f"Choose {names}, {others}.", field="score")
    return _BY_NAME[name]
