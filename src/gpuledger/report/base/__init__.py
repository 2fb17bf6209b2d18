"""What all views share: colours, phrases, quantities, terminals.

Begin with ``terminal``.
"""
