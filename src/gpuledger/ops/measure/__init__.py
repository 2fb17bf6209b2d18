"""Measure operators on this machine's GPU or CPU, on one device or several.

``predict`` and ``exchange`` may import it. Start reading at ``measure``.
"""
