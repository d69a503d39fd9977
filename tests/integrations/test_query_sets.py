from __future__ import annotations

import numpy as np
import pytest

from dualform import PreviewSet
from dualform.errors import BadInput
from dualform.integrations.query_sets import QuerySets


def test_preview_sets_without_a_query_set_are_refused_before_the_training() -> None:
    with pytest.raises(BadInput, match="query_set_previews names 'tset', which query_sets lacks"):
        QuerySets({"test": np.eye(3)}, preview_sets={"tset": PreviewSet.texts(["a", "b", "c"])})


def test_labels_without_a_query_set_are_refused_before_the_training() -> None:
    with pytest.raises(BadInput, match="query_set_labels names 'tset', which query_sets lacks"):
        QuerySets({"test": np.eye(3)}, {"tset": [0, 1, 2]})
