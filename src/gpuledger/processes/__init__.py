"""Start a child process for a job and return its result.

May import errors only. Start reading at ``child_job``.
"""
