"""Gradients and updates that do not come where they are looked for: refused at first, a defect later."""

import pytest
from torch.nn.functional import cross_entropy

from dualform.errors import RecordingError

from .listed import batches, opened_on, small_net, train


def test_a_gradient_outside_its_step_is_refused_at_first_and_a_defect_later(tmp_path):
    model = small_net()
    opened = opened_on(model, tmp_path / "m")
    data = batches(3)
    reason = "the gradient of layer '4' arrived outside the step that its forward pass ran in"
    with opened.recorder:
        with opened.recorder.step():
            loss = model(data[0][0]).sum()
        with pytest.raises(RecordingError, match=rf"^{reason}\. Put forward and backward of a batch into one"):
            loss.backward()
        opened.optimizer.zero_grad()
        train(opened, model, data[:2])
        with opened.recorder.step():
            loss = model(data[0][0]).sum()
        loss.backward()
        with opened.recorder.step():
            model(data[1][0]).sum().backward()
    assert ("4", 2, f"{reason}, after step 2") in opened.sink.defects
    assert len(opened.sink.recorded) == 4


def test_an_update_outside_a_step_that_was_not_recorded(tmp_path):
    model = small_net()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        for number, (x, y) in enumerate(batches(3)):
            opened.optimizer.zero_grad()
            with opened.recorder.step(label=y):
                (cross_entropy(model(x), y) * (float("nan") if number == 1 else 1)).backward()
            if number:
                opened.optimizer.step()
    reason = (
        "after step 0 the optimizer updated with NaN or infinity in a key or error signal, in a step that was not "
        "recorded"
    )
    assert sorted(opened.sink.defects) == [("0", 0, reason), ("2", 0, reason), ("4", 0, reason)]
    assert [(log.step, log.updated) for log in opened.sink.logs.values()] == [(0, False)]


def test_an_optimizer_that_steps_twice_later_is_a_defect(tmp_path):
    model = small_net()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        train(opened, model, batches(1))
        x, y = batches(1)[0]
        opened.optimizer.zero_grad()
        with opened.recorder.step(label=y):
            cross_entropy(model(x), y).backward()
            opened.optimizer.step()
            opened.optimizer.step()
    assert opened.sink.defects == [(layer, 1, "the optimizer stepped twice inside step 1") for layer in ("0", "2", "4")]
