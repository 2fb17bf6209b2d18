"""The workspaces of convolutions: measured ones, and a model of the others.

Begin with ``convolutions``.
"""
