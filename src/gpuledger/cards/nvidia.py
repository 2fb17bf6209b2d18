"""NVIDIA GPUs: read with NVML, or with the nvidia-smi command if NVML's library cannot be loaded."""

from __future__ import annotations

from gpuledger.cards.vendor import LibraryMissingError, Source, Vendor


def _open(tool_interval_ns: int | None) -> Source:
    """Return the GPUs; see :class:`gpuledger.cards.vendor.Vendor`."""
    from gpuledger.cards.nvml import open_nvml

    try:
        return open_nvml()
    except LibraryMissingError:
        if tool_interval_ns is None:
            raise
        from gpuledger.cards.smi import open_smi

        found = open_smi(tool_interval_ns)
        if found is None:
            raise
        return found


NVIDIA = Vendor(
    name="NVIDIA",
    open=_open,
    driver_files=("/dev/nvidiactl", "/dev/dxg"),  # Linux, or Windows with WSL
    card_files="nvidia[0-9]*",
    tool="nvidia-smi",
    closed_hint="Add this user to the group of the device files, or start the container with --gpus all",
    broken_hint="Reboot, or mount the host's driver libraries: the driver and its library may have different versions",
)
