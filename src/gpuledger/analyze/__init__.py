"""Pure functions from a run to frozen results. No torch, no card, no printing."""
