"""Workspace sizes of convolutions: measured values, and a model for the rest.

``temporaries`` and what imports it may import it. Start reading at ``convolutions``.
"""
