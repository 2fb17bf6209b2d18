"""``gpuledger`` and ``python -m gpuledger``."""

import sys


def start() -> None:
    """Run the command line in a process of its own."""
    try:
        from gpuledger.cli.ending import remove_files_when_ended
        from gpuledger.cli.main import main
        from gpuledger.cli.pandas_aside import leave_pandas_aside
    except KeyboardInterrupt:  # later ones are answered by main
        sys.exit(130)
    if "ops" not in sys.argv:  # which makes models of the user's own in this process, with what they load
        leave_pandas_aside()
    remove_files_when_ended()
    main(prog_name="gpuledger")


if __name__ == "__main__":
    start()
