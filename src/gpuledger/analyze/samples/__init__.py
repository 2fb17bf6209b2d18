"""GPU samples over time.

May import ``memory``. Start reading at ``series``.
"""
