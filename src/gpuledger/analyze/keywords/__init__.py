"""Memory in groups of keywords, and the keyword files that come with gpuledger.

May import ``overview`` and ``memory``. Begin with ``keyword_groups``.
"""
