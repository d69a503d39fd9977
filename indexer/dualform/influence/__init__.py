"""Which training datapoints moved the loss of some examples, and by how much: a ledger of a recorded training."""
