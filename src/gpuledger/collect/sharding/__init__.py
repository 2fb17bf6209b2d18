"""Sharded training: which memory a framework holds for shards, gathered weights and collectives.

May import ``collect.attribution`` and ``collect.adapter``. Begin with :mod:`.fully_shard`.
"""
