"""Commands that show a run, or turn it into something else."""
