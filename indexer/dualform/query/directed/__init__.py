"""Contributions along a direction: what a slot's value is worth there, beside the score of its key."""
