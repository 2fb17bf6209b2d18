"""Workspace sizes of convolutions: measured values, and a model for the rest.

Every other package of ``simulate`` may import it. Start reading at ``convolutions``.
"""
