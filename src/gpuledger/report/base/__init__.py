"""Shared by all renderers: colours, phrases, formatted quantities and terminal output.

Start reading at ``terminal``.
"""
