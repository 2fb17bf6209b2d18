"""Access to PyTorch without disturbing the program: observed functions, private functions, the guard and Kineto.

The lowest package that imports torch. Start reading at ``guard`` and ``instrument``; ``torch_private`` lists every
private function in use.
"""
