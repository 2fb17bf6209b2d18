"""Memory grouped by keyword, and the keyword files that ship with gpuledger.

``view`` and ``ranks`` may import it. Start reading at ``keyword_groups``.
"""
