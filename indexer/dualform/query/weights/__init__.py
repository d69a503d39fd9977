"""The weights of a layer, rebuilt from the record: coefficients, outputs, reconstruction errors."""
