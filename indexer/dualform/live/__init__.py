"""Questions that are asked with the model itself at hand: what it feeds to its layers, and what it answers with other
weights. They become plain vectors before anyone is asked, so that a memory in a folder and a served one answer alike.
"""

from dualform.live.applied import applied as applied
from dualform.live.queries import queries as queries
