"""The files of MXNet's GPU memory profiler: CSV, JSON trees and logs of call stacks.

Begin with ``files``; the rules of its tags are in ``tags``, which the logs of the older profiler share.
"""
