"""``python -m gpuledger.collect.bootstrap`` prints the directory to put on PYTHONPATH."""

from gpuledger.collect.bootstrap import bootstrap_directory

print(bootstrap_directory())
