"""Workspace sizes of convolutions: measured values, and a model for the rest.

``advice``, ``estimate``, ``ranks``, ``rest`` and ``gpu`` may import it. Start reading at ``convolutions``.
"""
