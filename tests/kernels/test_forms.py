"""Which form of the compiled loops is used, and who says so."""

from __future__ import annotations

import ctypes

import pytest
import torch

import dualform
from dualform import kernels
from dualform.errors import BadInput
from dualform.kernels import loader


@pytest.fixture
def library(monkeypatch):
    """`kernels.library` as in a new process; the form that was used is used again at the end."""
    former = kernels.form()
    kernels.library.cache_clear()
    yield kernels.library
    monkeypatch.undo()
    kernels.library.cache_clear()
    kernels.library()
    if former is not None:
        kernels.use(former)


def test_the_fastest_is_used_unless_the_environment_names_another(library, monkeypatch):
    monkeypatch.delenv(loader.VARIABLE, raising=False)
    if library() is None:
        pytest.skip("the loops are not compiled")
    assert kernels.form() == kernels.forms()[-1]
    for form in kernels.forms():
        monkeypatch.setenv(loader.VARIABLE, form)
        library.cache_clear()
        assert kernels.form() == form
        assert kernels.fast() is (form != "portable")


def test_without_loops(library, monkeypatch):
    monkeypatch.setenv(loader.VARIABLE, "none")
    assert library() is None
    assert (kernels.form(), kernels.forms(), kernels.fast()) == (None, (), False)


def test_a_form_that_there_is_not_is_refused(library, monkeypatch):
    monkeypatch.setenv(loader.VARIABLE, "avx9")
    message = (
        r"^DUALFORM_LOOPS is 'avx9', which is no form of the compiled loops\. Forms: portable, avx2, avx512vnni, and"
    )
    with pytest.raises(BadInput, match=message):
        library()


def test_a_form_that_the_processor_does_not_run_is_refused(library, monkeypatch):
    class Portable(ctypes.CDLL):
        def __init__(self):
            pass

        def dualform_best_form(self):
            return 0

    monkeypatch.setattr(kernels, "load", Portable)
    monkeypatch.setenv(loader.VARIABLE, "avx2")
    with pytest.raises(BadInput, match=r"^this processor runs no loops of the form 'avx2'\. Forms here: portable;"):
        library()


def test_why_there_are_no_loops_is_told(library, monkeypatch, tmp_path):
    assert kernels.described() == f"loops {kernels.form()}" or library() is None
    assert loader.load(tmp_path / "none.so") == "dualform was installed without a C compiler"
    text = tmp_path / "text.so"
    text.write_text("no library")
    assert loader.load(text).startswith("they cannot be loaded (")
    monkeypatch.setattr(kernels, "load", lambda: loader.load(tmp_path / "none.so"))
    library.cache_clear()
    assert library() is None
    assert kernels.described().startswith("no compiled loops: dualform was installed without a C compiler. The best")
    assert "sums and recording take longer" in kernels.described()
    assert kernels.missed() == kernels.described()
    monkeypatch.setenv(loader.VARIABLE, "none")
    library.cache_clear()
    assert kernels.described() == "no compiled loops, as DUALFORM_LOOPS says"
    assert kernels.missed() == ""


def test_a_recorder_says_once_what_it_costs_that_there_are_no_loops(monkeypatch, tmp_path, capsys):
    def record(name):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with dualform.Recorder(model, optimizer, tmp_path / name) as recorder, recorder.step():
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        return capsys.readouterr().err

    monkeypatch.delenv("DUALFORM_QUIET", raising=False)
    if kernels.library() is not None:
        assert "compiled loops" not in record("with")
    monkeypatch.setattr(kernels, "missed", lambda: "no compiled loops: there was no compiler. Recording takes longer")
    assert record("without").count("no compiled loops: there was no compiler. Recording takes longer") == 1


def test_what_was_compiled_from_other_sources_is_not_called(monkeypatch):
    if kernels.library() is None:
        pytest.skip("the loops are not compiled")
    monkeypatch.setattr(loader, "ABI", -1)
    assert loader.load().endswith(" was compiled from other sources")
