"""Child processes that are started for a job.

May import errors only.
"""
