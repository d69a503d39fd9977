"""The kinds of score, the canonical inner product that they are made of, and what multiplies keys with queries."""
