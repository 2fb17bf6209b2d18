"""Pure functions from a run to immutable results. No torch, no GPU, no printing."""
