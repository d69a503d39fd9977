"""The wire of dualform: package dualform.v1, and what turns its messages into the plain values and back.

Generated code stands in `v1`; regenerate it with `make protos`.
"""
