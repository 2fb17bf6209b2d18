"""Readers of other tools' files. Input is untrusted: it is parsed, never executed."""
