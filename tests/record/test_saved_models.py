"""A model that is being recorded is saved and copied as any other."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from torch.nn.functional import cross_entropy

from .listed import batches, opened_on, small_net, train


@pytest.mark.parametrize("copied", ["torch.save", "pickle", "deepcopy"])
def test_a_model_is_saved_and_copied_while_it_is_recorded(tmp_path, copied):
    model = small_net()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        train(opened, model, batches(2))
        if copied == "deepcopy":
            twin = copy.deepcopy(model)
        elif copied == "pickle":
            twin = pickle.loads(pickle.dumps(model))
        else:
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            twin = torch.load(file, weights_only=False)
        x, y = batches(1)[0]
        with opened.recorder.step(label=y):
            cross_entropy(twin(x), y).backward()
            cross_entropy(model(x), y).backward()
    assert [len(batch.layers["0"]) for batch in opened.sink.recorded] == [1, 1, 1]
    assert torch.equal(twin(x), model(x))


def test_a_saved_model_loads_where_dualform_is_not(tmp_path):
    model = small_net()
    opened = opened_on(model, tmp_path / "m")
    with pytest.warns(RuntimeWarning, match="Nothing was recorded in"), opened.recorder:
        torch.save(model, tmp_path / "model.pt")
    program = (
        "import sys, torch\n"
        "sys.modules['dualform'] = None\n"
        f"model = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False)\n"
        "assert model(torch.ones(1, 5)).shape == (1, 3)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
