"""Questions answered while a training is run a second time, so that no keys need to be stored (paper, appendix D)."""
