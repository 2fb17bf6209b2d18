"""Child processes that are started for a job.

May import errors only. Begin with ``child_job``: it starts a child with an order and returns its outcome.
"""
