"""Sparse tensors on the simulated GPU. Torch's fake sparse tensors are empty: the parts of these are kept beside them.

Torch has no fake kernels for most operators with sparse tensors. It runs them on real zeros of the full size.
Whatever may import ``simulate.gpu`` may import it. Start reading at ``parts``.
"""
