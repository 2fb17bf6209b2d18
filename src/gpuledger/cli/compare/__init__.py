"""Commands that compare runs, or check one against limits.

``ops`` may import it. Start reading at ``check``.
"""
