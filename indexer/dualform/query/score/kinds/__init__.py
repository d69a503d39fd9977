"""The kinds of score, one file each. A new score is a new file here and a line in the table below.

Questions, the wire and the command line carry a score by its name and know nothing else of it. A new score provides
what query/score/score.py lists:

- a name;
- how an inner product becomes a score (`of`). If it depends on nothing else, rounds nothing, and moves no two inner
  products further apart, the searchers of rows rank by it as they stand;
- which searchers find its best slots (`searchers`). A score that the compiled screen does not know leaves the screen
  out; one that is no such function of the inner product brings a searcher of its own;
- how sums are made (`sums`), and when they follow from sums of keys (`additive`, which replay asks as well).

What this does not cover yet: a score that weighs each slot by more than its key, such as its contribution along a
direction, alpha_t e_t. It differs between slots that share a key, needs values and coefficients, and so brings its own
searcher and its own sums; and a direction has to travel with the question (questions/scores.py, its method, and the
wire), because a name cannot carry it. Replay keeps no values and would have to refuse it.
"""

from __future__ import annotations

from collections.abc import Mapping

from dualform.errors import BadInput
from dualform.query.score.kinds.absolute import Absolute
from dualform.query.score.kinds.signed import Signed
from dualform.query.score.score import Score

_BY_NAME: Mapping[str, Score] = {score.name: score for score in (Signed(), Absolute())}


def named(name: str) -> Score:
    """The score of that name. Raises BadInput where there is none."""
    if name not in _BY_NAME:
        names = " or ".join(f'"{known}"' for known in _BY_NAME)
        raise BadInput(f"score is {name!r}.", hint=f"It is {names}.", field="score")
    return _BY_NAME[name]
