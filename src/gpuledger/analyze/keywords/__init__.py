"""Memory grouped by keyword, and the keyword files that ship with gpuledger.

May import ``overview`` and ``memory``. ``view`` and ``ranks`` may import it. Start reading at ``keyword_groups``.
"""
