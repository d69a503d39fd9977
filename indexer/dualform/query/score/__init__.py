"""What a score is, and what multiplies keys with queries."""
