"""The commands of ``gpuledger ops``."""
