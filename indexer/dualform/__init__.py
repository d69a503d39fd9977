"""dualform: the training of a network as an exact key-value memory that answers questions.

    recorder = dualform.Recorder(model, optimizer, "runs/mnist")     # records while you train
    memory = dualform.open("runs/mnist")                             # answers questions about it
    memory = dualform.connect(target)                                # the same, over a folder or a server's host:port

Importing this package loads neither torch nor faiss nor duckdb; each name below loads what it needs when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dualform.extras import loaded_on_use

if TYPE_CHECKING:
    from dualform.answers import (
        Adjoint as Adjoint,
        Agreement as Agreement,
        Cancellation as Cancellation,
        Columns as Columns,
        Contributions as Contributions,
        Distributions as Distributions,
        GroupSums as GroupSums,
        Hits as Hits,
        Ledger as Ledger,
        MemoryInfo as MemoryInfo,
        Outputs as Outputs,
        OutputSummary as OutputSummary,
        Placebos as Placebos,
        Previews as Previews,
        QuerySet as QuerySet,
        Reconstruction as Reconstruction,
        Reconstructions as Reconstructions,
        Retrainings as Retrainings,
        Scan as Scan,
        Status as Status,
        Weights as Weights,
    )
    from dualform.costs.estimate import Estimate as Estimate, estimate as estimate
    from dualform.deletion.delete import delete as delete
    from dualform.errors import DualformError as DualformError
    from dualform.influence.adjoint import adjoint as adjoint, retrain as retrain
    from dualform.influence.cost import estimate_adjoint as estimate_adjoint, estimate_ledger as estimate_ledger
    from dualform.influence.ledger import Influence as Influence, ledger as ledger
    from dualform.methods import Answers as Answers, AsyncAnswers as AsyncAnswers
    from dualform.query.engine import Engine as Engine, open_memory as open
    from dualform.questions import (
        Contribution as Contribution,
        Distribution as Distribution,
        ExampleGradients as ExampleGradients,
        Filter as Filter,
        GradientSum as GradientSum,
        GradientTopK as GradientTopK,
        GroupSum as GroupSum,
        LayerGradients as LayerGradients,
        MaskCancellation as MaskCancellation,
        NetworkWeights as NetworkWeights,
        Output as Output,
        Placebo as Placebo,
        PreviewLookup as PreviewLookup,
        QuerySetExamples as QuerySetExamples,
        SlotKeys as SlotKeys,
        Target as Target,
        TopK as TopK,
        Vectors as Vectors,
    )
    from dualform.record.recorder import Recorder as Recorder
    from dualform.record.taps.matrix import tap as tap
    from dualform.rerun.rerun import Rerun as Rerun
    from dualform.store.previews.preview_set import PreviewSet as PreviewSet
    from dualform_client.target import connect as connect

    __version__: str

_HOME = {
    "Recorder": ("dualform.record.recorder", "Recorder"),
    "Rerun": ("dualform.rerun.rerun", "Rerun"),
    "Estimate": ("dualform.costs.estimate", "Estimate"),
    "estimate": ("dualform.costs.estimate", "estimate"),
    "tap": ("dualform.record.taps.matrix", "tap"),
    "Influence": ("dualform.influence.ledger", "Influence"),
    "ledger": ("dualform.influence.ledger", "ledger"),
    "adjoint": ("dualform.influence.adjoint", "adjoint"),
    "retrain": ("dualform.influence.adjoint", "retrain"),
    "estimate_adjoint": ("dualform.influence.cost", "estimate_adjoint"),
    "estimate_ledger": ("dualform.influence.cost", "estimate_ledger"),
    "PreviewSet": ("dualform.store.previews.preview_set", "PreviewSet"),
    "delete": ("dualform.deletion.delete", "delete"),
    "open": ("dualform.query.engine", "open_memory"),
    "connect": ("dualform_client.target", "connect"),
    "Engine": ("dualform.query.engine", "Engine"),
    "DualformError": ("dualform.errors", "DualformError"),
    **{name: ("dualform.methods", name) for name in ("Answers", "AsyncAnswers")},
    **{
        name: ("dualform.questions", name)
        for name in (
            "PreviewLookup",
            "Contribution",
            "Distribution",
            "ExampleGradients",
            "Filter",
            "GradientSum",
            "GradientTopK",
            "GroupSum",
            "LayerGradients",
            "MaskCancellation",
            "NetworkWeights",
            "Output",
            "Placebo",
            "QuerySetExamples",
            "SlotKeys",
            "TopK",
            "Target",
            "Vectors",
        )
    },
    **{
        name: ("dualform.answers", name)
        for name in (
            "Previews",
            "Cancellation",
            "Reconstruction",
            "Reconstructions",
            "Columns",
            "Contributions",
            "Distributions",
            "Status",
            "GroupSums",
            "Hits",
            "Adjoint",
            "Agreement",
            "Ledger",
            "Retrainings",
            "MemoryInfo",
            "Outputs",
            "OutputSummary",
            "Placebos",
            "QuerySet",
            "Scan",
            "Weights",
        )
    },
}

__all__ = [
    "Adjoint",
    "Agreement",
    "Answers",
    "AsyncAnswers",
    "Cancellation",
    "Columns",
    "Contribution",
    "Contributions",
    "Distribution",
    "Distributions",
    "DualformError",
    "Engine",
    "Estimate",
    "ExampleGradients",
    "Filter",
    "GradientSum",
    "GradientTopK",
    "GroupSum",
    "GroupSums",
    "Hits",
    "Influence",
    "LayerGradients",
    "Ledger",
    "MaskCancellation",
    "MemoryInfo",
    "NetworkWeights",
    "Output",
    "OutputSummary",
    "Outputs",
    "Placebo",
    "Placebos",
    "PreviewLookup",
    "PreviewSet",
    "Previews",
    "QuerySet",
    "QuerySetExamples",
    "Reconstruction",
    "Reconstructions",
    "Recorder",
    "Rerun",
    "Retrainings",
    "Scan",
    "SlotKeys",
    "Status",
    "Target",
    "TopK",
    "Vectors",
    "Weights",
    "__version__",
    "adjoint",
    "connect",
    "delete",
    "estimate",
    "estimate_adjoint",
    "estimate_ledger",
    "ledger",
    "open",
    "retrain",
    "tap",
]

_load = loaded_on_use("dualform", _HOME)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    return _load(name)


def _version() -> str:
    """That of the installed distribution, which is made of git's tags."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("dualform")
    except PackageNotFoundError:
        return "unknown"  # sources on the path, installed nowhere


def __dir__() -> list[str]:
    return __all__
