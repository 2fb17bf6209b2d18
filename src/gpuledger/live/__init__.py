"""The live view: in a process of its own, it looks at the GPUs and at a run while it is written."""
