"""The names that `import dualform` offers, all of them reachable, and none of them heavy before it is used."""

from __future__ import annotations

import subprocess
import sys

import dualform


def test_exactly_these_names_are_offered():
    assert sorted(dualform.__all__) == [
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
    assert all(hasattr(dualform, name) for name in dualform.__all__)
    assert set(dualform._HOME) | {"__version__"} == set(dualform.__all__)


def test_importing_loads_nothing_heavy():
    script = (
        "import sys, dualform, dualform.answers; print({'torch', 'faiss', 'duckdb', 'grpc'} & set(sys.modules));"
        "import dualform_service.server; print([name for name in sys.modules if 'opentelemetry' in name])"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert told.stdout.split() == ["set()", "[]"]
