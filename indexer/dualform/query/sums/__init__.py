"""The attention that goes to each group of slots."""
