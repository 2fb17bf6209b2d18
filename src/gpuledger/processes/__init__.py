"""Start a child process for a job and return its result, or connect to Ray.

May import errors only. Every other package but ``files`` may import it. Start reading at ``child_job``.
"""
