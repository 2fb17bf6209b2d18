"""A card that is not in the machine: its allocator, its devices, what a training step would hold on it."""
