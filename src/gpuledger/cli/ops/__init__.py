"""The commands of ``gpuledger ops``.

No other package of ``cli`` imports it. Start reading at ``group``.
"""
