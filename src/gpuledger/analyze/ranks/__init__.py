"""All ranks of a run together: a summary of each rank, and what the summaries say about the ranks.

May import ``analyze.compare`` and everything below it. :mod:`.summaries` writes a rank's summary once, after its
tables. :mod:`.rank_set` reads the summaries of all ranks with DuckDB, so its cost does not depend on the number of
blocks. Begin there.
"""
