"""GPUs of this machine: memory, processes, power, energy and clocks, through one protocol for every vendor.

Needs no torch. Every other package but ``report``, ``analyze``, ``model``, ``processes`` and ``files`` may import it.
Start reading at ``card`` (the protocol) and ``opening`` (the list of vendors, and the only place that opens GPUs). To
add a vendor, copy ``nvidia``.
"""
