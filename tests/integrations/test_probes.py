from __future__ import annotations

import numpy as np
import pytest

from dualform import Gallery
from dualform.errors import BadInput
from dualform.integrations.probes import Probes


def test_galleries_without_a_probe_are_refused_before_the_training() -> None:
    with pytest.raises(BadInput, match="probe_galleries has 'tset', which probes has no inputs of"):
        Probes({"test": np.eye(3)}, galleries={"tset": Gallery.texts(["a", "b", "c"])})


def test_labels_without_a_probe_are_refused_before_the_training() -> None:
    with pytest.raises(BadInput, match="probe_labels has 'tset', which probes has no inputs of"):
        Probes({"test": np.eye(3)}, {"tset": [0, 1, 2]})
