"""Which slots a `where` leaves: from its text to a set of slots."""
