"""Answers of a memory, as plain values."""

from dualform.answers.contents import (
    LayerInfo as LayerInfo,
    MemoryInfo as MemoryInfo,
    OutputSummary as OutputSummary,
    Patches as Patches,
    Preview as Preview,
    Previews as Previews,
    QuerySet as QuerySet,
    QuerySetInfo as QuerySetInfo,
)
from dualform.answers.influence import (
    Adjoint as Adjoint,
    Agreement as Agreement,
    Ledger as Ledger,
    Retrainings as Retrainings,
)
from dualform.answers.outputs import (
    Cancellation as Cancellation,
    Concentration as Concentration,
    Contributions as Contributions,
    Outputs as Outputs,
    Placebos as Placebos,
    Reconstruction as Reconstruction,
    Reconstructions as Reconstructions,
    Weights as Weights,
)
from dualform.answers.scores import (
    Distributions as Distributions,
    GroupKey as GroupKey,
    GroupSums as GroupSums,
    Hits as Hits,
)
from dualform.answers.table import Columns as Columns, Scan as Scan, Status as Status
