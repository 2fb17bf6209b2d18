"""Sharded training: which memory a framework holds for shards, gathered weights and collectives.

``session``, ``flight``, ``memory`` and ``passes`` may import it. Start reading at ``sharded_training`` and
``library_observer``.
"""
