"""What version 0.1 answered about a training, this version answers, to the last bit."""

from pathlib import Path

import numpy as np
import pytest

from . import version_0_1


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    path = tmp_path_factory.mktemp("version") / "run"
    version_0_1.record(path)
    return version_0_1.answers(path)


def test_ids_scores_and_sums_have_the_bits_of_version_0_1(answers):
    with np.load(Path(__file__).with_name("version_0_1.npz")) as before:
        assert set(answers) == set(before)
        for name in before:
            assert answers[name].tobytes() == before[name].tobytes(), name
