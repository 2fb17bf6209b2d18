"""Readers of files that others wrote. Untrusted input: parsed, never executed."""
