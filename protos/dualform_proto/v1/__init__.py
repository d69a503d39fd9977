"""Generated from dualform.proto by `make protos`; not to be edited."""
