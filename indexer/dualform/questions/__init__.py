"""Questions to a memory, as plain values. The type of a question says the type of its answer."""

from dualform.questions.arguments import as_by as as_by, as_ids as as_ids
from dualform.questions.filters import (
    Filter as Filter,
    FilterLike as FilterLike,
    FilterOrFilters as FilterOrFilters,
    Ids as Ids,
    as_filter as as_filter,
    as_filters as as_filters,
)
from dualform.questions.gradients import (
    ExampleGradients as ExampleGradients,
    GradientSum as GradientSum,
    GradientTopK as GradientTopK,
    LayerGradients as LayerGradients,
    as_layer_names as as_layer_names,
)
from dualform.questions.outputs import (
    Contribution as Contribution,
    MaskCancellation as MaskCancellation,
    NetworkWeights as NetworkWeights,
    Output as Output,
    Placebo as Placebo,
)
from dualform.questions.question import (
    Inventory as Inventory,
    LayerQuestion as LayerQuestion,
    PreviewLookup as PreviewLookup,
    Queries as Queries,
    QueriesLike as QueriesLike,
    QuerySetExamples as QuerySetExamples,
    QuerySetLookup as QuerySetLookup,
    Question as Question,
    SlotKeys as SlotKeys,
    SlotLookup as SlotLookup,
    SqlStatement as SqlStatement,
    Vectors as Vectors,
    Verification as Verification,
    as_queries as as_queries,
)
from dualform.questions.scores import (
    Distribution as Distribution,
    GroupSum as GroupSum,
    Target as Target,
    TargetLike as TargetLike,
    TopK as TopK,
    as_target as as_target,
)
