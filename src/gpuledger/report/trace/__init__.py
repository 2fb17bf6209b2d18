"""Export a run as a trace for Perfetto and chrome://tracing.

May import ``base``. Start reading at ``trace``.
"""
