"""Which steps of a program an estimate has if they differ: the largest batches, and what later steps can need.

Whatever may import ``simulate.estimate`` may import it. Start reading at ``batches_ahead``.
"""
