"""Pure functions from a run to frozen results. No torch, no GPU, no printing."""
