"""Start a child process for a job and return its result.

May import errors only. Every other package but ``files`` may import it. Start reading at ``child_job``.
"""
