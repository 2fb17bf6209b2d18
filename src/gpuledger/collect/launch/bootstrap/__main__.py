"""``python -m gpuledger.collect.launch.bootstrap`` prints the directory to add to PYTHONPATH."""

from gpuledger.collect.launch.bootstrap import bootstrap_directory

print(bootstrap_directory())
