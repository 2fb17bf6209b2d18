"""Export a run as a trace for Perfetto and chrome://tracing.

No other package of ``report`` imports it. Start reading at ``trace``.
"""
