"""Commands that show, plot, query or export a run."""
