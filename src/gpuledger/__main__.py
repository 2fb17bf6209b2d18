"""``gpuledger`` and ``python -m gpuledger``."""

from gpuledger.cli.main import main
from gpuledger.cli.pandas_aside import leave_pandas_aside


def start() -> None:
    """Run the command line in a process of its own."""
    leave_pandas_aside()
    main(prog_name="gpuledger")


if __name__ == "__main__":
    start()
