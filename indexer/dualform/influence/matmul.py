"""Matrix products by torch, whose threads run the network, too.

The threads of another library would wait for its next product while the network runs, and keep torch's from working.
"""

from __future__ import annotations

import torch

from dualform.rules.update_rule import Doubles


def matmul(left: Doubles, right: Doubles, out: Doubles | None = None) -> Doubles:
    """As numpy.matmul, of arrays that may be written to."""
    into = None if out is None else torch.from_numpy(out)
    found: Doubles = torch.matmul(torch.from_numpy(left), torch.from_numpy(right), out=into).numpy()
    return found
