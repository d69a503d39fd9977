"""Answers of a memory, as plain values."""

from dualform.answers.appearances import Appearance as Appearance, Appearances as Appearances
from dualform.answers.cancellation import Cancellation as Cancellation, Concentration as Concentration
from dualform.answers.certificate import Certificate as Certificate, Certificates as Certificates
from dualform.answers.columns import Columns as Columns
from dualform.answers.contributions import Contributions as Contributions
from dualform.answers.distributions import Distributions as Distributions
from dualform.answers.grade import Grade as Grade
from dualform.answers.group_sums import GroupSums as GroupSums
from dualform.answers.hits import GroupKey as GroupKey, Hits as Hits
from dualform.answers.ledger import Ledger as Ledger
from dualform.answers.memory_info import LayerInfo as LayerInfo, MemoryInfo as MemoryInfo, ProbeInfo as ProbeInfo
from dualform.answers.outputs import Outputs as Outputs
from dualform.answers.probe import Probe as Probe
from dualform.answers.scan import Scan as Scan
from dualform.answers.weights import Weights as Weights
