"""What captum says of the same training: TracInCP over checkpoints, and the likeness of activations.

Scores are float64[tests, samples], the greater, the more a sample helps (as in `ours`).
"""

from __future__ import annotations

from collections.abc import Mapping
from tempfile import TemporaryDirectory

import numpy as np
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from dualform_studies.attribution.ours import Scores, Way
from dualform_studies.attribution.recorded import Recorded

PACKAGE = "captum"

_AT_ONCE = 500
_HIDDEN = ("1", "4")
"""The modules whose outputs the further linear layers take, without dropout. Of a single one captum 0.9 raises
AttributeError."""


def ways(heavy: bool = True) -> dict[str, Way]:
    """By name; none of them is heavy. Raises ImportError without captum."""
    import captum.influence  # noqa: F401

    return {"captum TracInCP": tracin, "captum similarity, last hidden layer": similarity}


def tracin(recorded: Recorded) -> Scores:
    """Dot products of gradients summed over the checkpoints (Pruthi et al., 2020)."""
    from captum.influence import TracInCP

    network = recorded.recipe.build(recorded.trained.inputs.shape[1], recorded.trained.classes, 0).eval()

    def load(model: nn.Module, state: Mapping[str, Tensor]) -> float:
        model.load_state_dict(dict(state))
        return recorded.recipe.lr

    method = TracInCP(
        network,
        TensorDataset(recorded.trained.inputs, recorded.trained.labels),
        list(recorded.checkpoints),
        load,
        loss_fn=nn.CrossEntropyLoss(reduction="sum"),
        batch_size=_AT_ONCE,
        sample_wise_grads_per_batch=True,
    )
    places = [slice(at, at + _AT_ONCE) for at in range(0, len(recorded.attributed), _AT_ONCE)]
    examples = [recorded.attributed.of(place) for place in places]
    parts = [method.influence((own.inputs, own.labels)) for own in examples]
    return np.concatenate([part.detach().double().numpy() for part in parts])


class _Inputs(Dataset[Tensor]):
    """Inputs without labels."""

    def __init__(self, inputs: Tensor) -> None:
        self._inputs = inputs

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, row: int) -> Tensor:
        return self._inputs[row]


def similarity(recorded: Recorded) -> Scores:
    """The cosine of what the last linear layer takes."""
    from captum.influence import SimilarityInfluence

    samples = len(recorded.trained)
    with TemporaryDirectory() as folder:
        method = SimilarityInfluence(
            recorded.network,
            list(_HIDDEN),
            _Inputs(recorded.trained.inputs),
            folder,
            "network",
            batch_size=samples,
        )
        rows, values = method.influence(recorded.attributed.inputs, top_k=samples)[_HIDDEN[-1]]
    scores = np.zeros((len(recorded.attributed), samples))
    np.put_along_axis(scores, rows.numpy(), values.detach().double().numpy(), axis=1)
    return scores
