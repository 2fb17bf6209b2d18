"""The files of MXNet's GPU memory profiler: CSV, JSON trees and logs of call stacks.

Whatever may import ``formats`` may import it. Start reading at ``files``. The rules of its tags are in ``tags``; the
logs of the older profiler use them, too.
"""
