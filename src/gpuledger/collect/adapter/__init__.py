"""Access to PyTorch without disturbing the program: observed functions, private functions, the guard and Kineto.

The lowest package that imports torch. Every other package of ``collect`` but ``launch`` and ``sampling`` may import it.
Start reading at ``guard`` and ``instrument``. ``torch_private``, ``dynamo`` and ``dispatch_modes`` have the private
functions in use.
"""
