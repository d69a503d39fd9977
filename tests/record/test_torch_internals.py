"""The private entries of torch do what the recorder needs of them."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from dualform.record.torch_internals import innermost_function_mode, packing_hooks, set_version_counters


def test_the_innermost_mode_is_the_one_that_was_entered_last():
    assert innermost_function_mode() is None
    with TorchFunctionMode(), TorchFunctionMode() as inner:
        assert innermost_function_mode() is inner
    assert innermost_function_mode() is None


def test_what_packs_saved_tensors_is_known_inside_a_checkpoint_alone():
    seen = []

    def part(x):
        seen.append(packing_hooks())
        return x.sin()

    output = checkpoint(part, torch.ones(2, requires_grad=True), use_reentrant=False)
    assert packing_hooks() is None
    assert len(seen[0]) == 2
    output.sum().backward()
    assert len(seen) == 2
    assert seen[1][0] is not seen[0][0]


def test_a_graph_goes_backward_once_the_versions_of_what_it_saved_are_back():
    own, other = torch.ones(2), torch.ones(2)
    made = torch.ones(2, requires_grad=True) * own
    versions = [own._version, other._version]
    own.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.sum().backward(retain_graph=True)
    set_version_counters([own, other], versions)
    made.sum().backward()
