"""Commands that estimate memory on a given GPU."""
