"""Workspace sizes of convolutions: measured values, and a model for the rest.

``advice``, ``estimate``, ``ranks``, ``rest``, ``gpu`` and ``temporaries`` may import it. Start reading at
``convolutions``.
"""
