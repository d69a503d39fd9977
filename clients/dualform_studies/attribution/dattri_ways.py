"""What dattri says of the same training: influence functions, TRAK and representer points.

Scores are float64[tests, samples], the greater, the more a sample helps (as in `ours`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from dualform_studies.attribution.examples import Examples
from dualform_studies.attribution.ours import Scores, Way
from dualform_studies.attribution.recorded import Recorded
from dualform_studies.attribution.schedule import epochs_of, whole
from dualform_studies.attribution.stacked import StackedNetworks

PACKAGE = "dattri"

CG_TESTS = 50
"""Test examples that conjugate gradients are run for: each takes products with the Hessian of its own."""
_AT_ONCE = 500
_ENSEMBLE = 10
_DAMPING = 1e-2
"""Added to the Hessian, and to the eigenvalues of EK-FAC."""
_HESSIAN = 1000
"""Training samples whose Hessian the conjugate gradients see."""
_LAST = "6"


def ways(heavy: bool = True) -> dict[str, Way]:
    """By name; `heavy`: also those that take minutes. Raises ImportError without dattri."""
    import dattri.algorithm  # noqa: F401

    found: dict[str, Way] = {"dattri TRAK-1": lambda recorded: trak(recorded, [recorded.network.state_dict()])}
    if heavy:
        found[f"dattri TRAK-{_ENSEMBLE}"] = lambda recorded: trak(recorded, ensemble(recorded))
        found[f"dattri IF-CG, first {CG_TESTS} tests"] = conjugate_gradients
        found["dattri EK-FAC"] = ekfac
        found["dattri RPS"] = representer_points
    return found


def conjugate_gradients(recorded: Recorded) -> Scores:
    from dattri.algorithm import IFAttributorCG

    method = IFAttributorCG(_task(recorded, _mean_loss), regularization=_DAMPING)
    method.cache(_loader(recorded.trained.of(slice(_HESSIAN)), _HESSIAN))
    tested = recorded.attributed.of(slice(CG_TESTS))
    return _scores(method.attribute(_loader(recorded.trained, len(recorded.trained)), _loader(tested)))


def ekfac(recorded: Recorded) -> Scores:
    from dattri.algorithm import IFAttributorEKFAC

    method = IFAttributorEKFAC(_task(recorded, _mean_loss), damping=_DAMPING)
    method.cache(_loader(recorded.trained))
    return _scores(method.attribute(_loader(recorded.trained, len(recorded.trained)), _loader(recorded.attributed)))


def trak(recorded: Recorded, states: Sequence[Mapping[str, Tensor]]) -> Scores:
    from dattri.algorithm import TRAKAttributor

    method = TRAKAttributor(
        _task(recorded, _margin, states), lambda *given: _probability(recorded.network, *given), regularization=_DAMPING
    )
    method.cache(_loader(recorded.trained))
    return _scores(method.attribute(_loader(recorded.attributed)))


def ensemble(recorded: Recorded) -> list[Mapping[str, Tensor]]:
    """The network, and others trained from further seeds, in the same orders."""
    recipe, trained, seed = recorded.recipe, recorded.trained, recorded.seed
    own = [recipe.build(trained.inputs.shape[1], trained.classes, seed + 1 + one) for one in range(_ENSEMBLE - 1)]
    stack = StackedNetworks(own)
    stack.train(trained, whole(epochs_of(len(trained), recipe.epochs, seed), recipe.batch, len(own)), recipe, seed)
    return [recorded.network.state_dict(), *stack.states(recorded.network)]


def representer_points(recorded: Recorded) -> Scores:
    from dattri.algorithm import RPSAttributor

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)

    method = RPSAttributor(_task(recorded, loss, of_network=False), _LAST)
    method.cache(_loader(recorded.trained))
    return _scores(method.attribute(_loader(recorded.trained), _loader(recorded.attributed)))


def _task(
    recorded: Recorded, loss: Callable[..., Any], states: Sequence[Mapping[str, Tensor]] = (), of_network: bool = True
) -> Any:
    """`of_network`: the loss takes the network, its parameters and the data, of which dattri hands over the last two,
    by the names that it reads of the function.
    """
    from dattri.task import AttributionTask

    network = recorded.recipe.build(recorded.trained.inputs.shape[1], recorded.trained.classes, 0).eval()

    def with_network(params: Mapping[str, Tensor], data: Any) -> Any:
        return loss(network, params, data)

    given = with_network if of_network else loss
    return AttributionTask(given, network, [dict(own) for own in states or [recorded.network.state_dict()]])


def _mean_loss(network: nn.Module, params: Mapping[str, Tensor], data: Any) -> Tensor:
    inputs, labels = data
    return cross_entropy(functional_call(network, dict(params), (inputs,)), labels)


def _margin(network: nn.Module, params: Mapping[str, Tensor], data: Any) -> Tensor:
    """The log odds of the label, log p - log(1 - p), of one example."""
    inputs, label = data
    outputs = functional_call(network, dict(params), (inputs[None],))[0]
    own = torch.arange(len(outputs)) == label
    return torch.where(own, outputs, 0.0).sum() - torch.where(own, -torch.inf, outputs).logsumexp(0)


def _probability(network: nn.Module, params: Mapping[str, Tensor], data: Any) -> Tensor:
    """The probability of the label, of one example."""
    inputs, label = data
    shares = functional_call(network, dict(params), (inputs[None],))[0].softmax(0)
    return torch.where(torch.arange(len(shares)) == label, shares, 0.0).sum()


def _loader(examples: Examples, at_once: int = _AT_ONCE) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(examples.inputs, examples.labels), batch_size=at_once, shuffle=False)


def _scores(found: Tensor) -> Scores:
    """dattri has samples for rows, tests for columns."""
    return found.detach().T.double().numpy()
