"""Owners and source lines of blocks that were allocated after the recorded steps.

Whatever may import ``analyze.posting`` may import it. Start reading at ``late_blocks``.
"""
