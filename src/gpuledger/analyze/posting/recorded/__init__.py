"""Times of operators that were measured while memory was recorded, for programs that end before a profiled step.

Whatever may import ``analyze.posting`` may import it. Start reading at ``operator_spans``.
"""
