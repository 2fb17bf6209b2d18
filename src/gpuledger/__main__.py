"""``python -m gpuledger``."""

from gpuledger.cli.main import main

main(prog_name="gpuledger")
