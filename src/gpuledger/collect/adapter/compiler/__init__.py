"""What TorchInductor compiles: its graphs, the Python code that it generates, and what its caches do not keep.

Whatever may import ``collect.adapter`` may import it. Start reading at ``inductor`` and ``generated_code``.
"""
