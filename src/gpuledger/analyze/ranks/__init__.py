"""All ranks of a run together: a summary of each rank, and what the summaries say about the ranks.

``view`` may import it. Start reading at ``rank_set``, which reads the summaries of all ranks with DuckDB, so that its
cost does not depend on the number of blocks. ``summaries`` writes a rank's summary once, after its tables.
"""
