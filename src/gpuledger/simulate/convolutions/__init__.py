"""Workspace sizes of convolutions: measured values, and a model for the rest.

Start reading at ``convolutions``.
"""
