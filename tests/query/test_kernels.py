"""Which kernels, temperatures and flags a question may name."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dualform.errors import BadInput
from dualform.questions import MaskCancellation, NetworkWeights, Output, arguments
from tests.query.test_output import BATCH, STEPS, Case


@pytest.mark.parametrize("temperature", [0, -1.0, math.nan, math.inf, True, "1", 10**400])
def test_temperatures_are_finite_and_above_zero(temperature):
    with pytest.raises(BadInput) as refused:
        Output("fc", np.ones(3), kernel="softmax", temperature=temperature)
    assert refused.value.message == f"temperature must be a finite number above 0, not {arguments.shown(temperature)}."
    assert (refused.value.hint, refused.value.field) == ("For example temperature=1.0.", "temperature")


def test_the_engine_answers_every_kernel_that_a_question_may_name(monkeypatch):
    case = Case()
    for kernel in arguments.KERNELS:
        assert case.engine.output("fc", case.queries, kernel=kernel).kernel == kernel
    monkeypatch.setattr(arguments, "KERNELS", (*arguments.KERNELS, "rbf"))
    with pytest.raises(BadInput, match=r"^Unknown kernel 'rbf'\.$"):
        case.engine.output("fc", case.queries, kernel="rbf")


def test_no_backend_is_said_to_have_scored_the_keys():
    case = Case()
    for kernel in arguments.KERNELS:
        scan = case.engine.output("fc", case.queries, at_step=3, kernel=kernel).scan
        assert (scan.backend, scan.slots_matching) == ("", STEPS * BATCH)


@pytest.mark.parametrize("name", ["initial", "allow_inexact"])
def test_what_is_neither_true_nor_false_is_refused(name):
    with pytest.raises(BadInput) as refused:
        Output("fc", np.ones(3), **{name: "no"})
    assert (refused.value.message, refused.value.hint) == (f"{name} must be True or False, not 'no'.", "")
    assert refused.value.field == name
    assert getattr(Output("fc", np.ones(3), **{name: np.True_}), name) is True


@pytest.mark.parametrize("question", [NetworkWeights, MaskCancellation])
def test_other_questions_have_flags_too(question):
    with pytest.raises(BadInput, match=r"^allow_inexact must be True or False, not 1\.$"):
        question("label = 1", allow_inexact=1)


def test_kernels_are_named():
    with pytest.raises(BadInput, match=r"^Unknown kernel 'rbf'\. Choose kernel=\"linear\" or kernel=\"softmax\"\.$"):
        Output("fc", np.ones(3), kernel="rbf")
    with pytest.raises(BadInput, match=r'^temperature cannot be used with kernel="linear"\.'):
        Output("fc", np.ones(3), temperature=1.0)
    with pytest.raises(
        BadInput, match=r"^temperature must be a finite number above 0, not a number of thousands of digits\."
    ):
        Output("fc", np.ones(3), kernel="softmax", temperature=10**5000)
    assert Output("fc", np.ones(3), kernel="softmax").temperature == 1.0
    assert Output("fc", np.ones(3), kernel="softmax", temperature=np.float32(2)).temperature == 2.0
