"""What names a query set that is not there is refused before the training."""

import numpy as np
import pytest

from dualform import PreviewSet
from dualform.errors import BadInput
from dualform.integrations.query_sets import QuerySets


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"preview_sets": {"tset": PreviewSet.texts(["a", "b", "c"])}}, "query_set_previews"),
        ({"labels": {"tset": [0, 1, 2]}}, "query_set_labels"),
    ],
)
def test_what_is_of_no_query_set_is_refused(given, named):
    with pytest.raises(BadInput, match=f"{named} names 'tset', which query_sets lacks"):
        QuerySets({"test": np.eye(3)}, **given)
