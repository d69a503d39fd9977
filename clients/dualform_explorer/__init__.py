"""The explorer: pages over a recorded training, for people who look. See `dualform explore`."""
