"""One rank of sharded training in one process: a process group without communication, and objects of other ranks.

``advice`` and ``estimate`` may import it. Start reading at ``one_rank``.
"""
