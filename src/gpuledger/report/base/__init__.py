"""Shared by all renderers: colours, phrases, formatted quantities and terminal output.

Every other package of ``report`` may import it. Start reading at ``terminal``.
"""
