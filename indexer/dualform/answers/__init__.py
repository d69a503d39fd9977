"""Answers of a memory, as plain values."""

from dualform.answers.adjoint import (
    Adjoint as Adjoint,
    Agreement as Agreement,
    Retrainings as Retrainings,
)
from dualform.answers.cancellation import Cancellation as Cancellation, Concentration as Concentration
from dualform.answers.columns import Columns as Columns
from dualform.answers.contributions import Contributions as Contributions
from dualform.answers.distributions import Distributions as Distributions
from dualform.answers.group_sums import GroupSums as GroupSums
from dualform.answers.hits import GroupKey as GroupKey, Hits as Hits
from dualform.answers.ledger import Ledger as Ledger
from dualform.answers.memory_info import (
    LayerInfo as LayerInfo,
    MemoryInfo as MemoryInfo,
    Patches as Patches,
    QuerySetInfo as QuerySetInfo,
)
from dualform.answers.output_summary import OutputSummary as OutputSummary
from dualform.answers.outputs import Outputs as Outputs
from dualform.answers.placebos import Placebos as Placebos
from dualform.answers.previews import Preview as Preview, Previews as Previews
from dualform.answers.query_set import QuerySet as QuerySet
from dualform.answers.reconstruction import Reconstruction as Reconstruction, Reconstructions as Reconstructions
from dualform.answers.scan import Scan as Scan
from dualform.answers.status import Status as Status
from dualform.answers.weights import Weights as Weights
