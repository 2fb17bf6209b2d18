"""Commands that compare runs, or check one against limits."""
