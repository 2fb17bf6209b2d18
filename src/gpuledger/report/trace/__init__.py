"""A run as a trace for Perfetto and chrome://tracing.

May import ``base``. Begin with ``trace``.
"""
