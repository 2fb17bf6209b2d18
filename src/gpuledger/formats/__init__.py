"""Readers of other tools' files. Input is untrusted: it is parsed, never executed.

Every other package but ``collect``, ``analyze``, ``cards``, ``model``, ``processes`` and ``files`` may import it. Start
reading at ``readers``.
"""
