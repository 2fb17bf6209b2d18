"""``gpuledger`` and ``python -m gpuledger``."""

import sys

from gpuledger.cli.main import main
from gpuledger.cli.pandas_aside import leave_pandas_aside


def start() -> None:
    """Run the command line in a process of its own."""
    if "ops" not in sys.argv:  # which makes models of the user's own in this process, with what they load
        leave_pandas_aside()
    main(prog_name="gpuledger")


if __name__ == "__main__":
    start()
