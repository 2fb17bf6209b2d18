"""Sharded training: which memory a framework holds for shards, gathered weights and collectives.

May import ``collect.attribution`` and ``collect.adapter``. ``session``, ``flight``, ``memory`` and ``passes`` may
import it. Begin with :mod:`.fully_shard`.
"""
