"""PyTorch, reached without disturbing the program: observed functions, private functions, the guard, Kineto.

The lowest package that imports torch. Begin with ``guard`` and ``instrument``;
``torch_private`` names private functions.
"""
