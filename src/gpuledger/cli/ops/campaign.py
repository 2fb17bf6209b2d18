"""``gpuledger ops campaign``: capture, measure, whole models, comparison and picture, from one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger.cli.common import json_option, output_option, print_json, print_lines, print_notes, ray_option, takes
from gpuledger.cli.ops.capture import say_left_out
from gpuledger.cli.ops.common import config_option, database_option, time_limit_option, trust_files_option
from gpuledger.cli.ops.compare import draw_pairs_into, lines_of
from gpuledger.cli.ops.measure import (
    MeasuringFlags,
    energy_coverage_of,
    filled_lines,
    measuring_options,
    method_of,
    parse_time_limit_ns,
    progress_bar,
)
from gpuledger.config import DEFAULT_DATABASE
from gpuledger.errors import GpuLedgerError, InputError, UsageError
from gpuledger.units import counted

if TYPE_CHECKING:
    from gpuledger.ops.measure.campaign import Campaigned
    from gpuledger.ops.measure.campaign_file import CampaignFile
    from gpuledger.ops.measure.fill import Filled
    from gpuledger.ops.measure.measured_device import Device
    from gpuledger.ops.totals.compare import Pair
    from gpuledger.ops.workloads.workload_spec import WorkloadSpec

FOLDER = "campaign"


@dataclass(frozen=True)
class CampaignFlags(MeasuringFlags):
    """What the line of ``ops campaign`` says."""

    config: str
    trust_files: bool
    database_url: str | None
    ray_address: str | None
    workers: int
    time_limit: str | None
    output: str
    as_json: bool


@click.command(
    "campaign",
    epilog="""\b
Examples:
  gpuledger ops campaign --config campaign.yml
  gpuledger ops campaign --config campaign.yml --ray local""",
)
@config_option(required=True)
@trust_files_option()
@database_option(None, f"  [default: the one in the file if you use --trust-files, otherwise {DEFAULT_DATABASE}]")
@ray_option()
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of Ray workers, if operators are measured on the CPU.",
)
@time_limit_option()
@output_option("Folder for the workloads, the results and the picture.", "DIR", FOLDER)
@measuring_options()
@json_option()
@takes(CampaignFlags)
def campaign_command(flags: CampaignFlags) -> None:
    """Capture, measure and compare the models in a file.

    Captures the models, measures the operators missing from the database, then measures each whole model and compares
    it with the sum of its operators. With --ray, each GPU measures one operator at a time, and --time-limit
    cannot be used.

    Run the same command again to resume, or to measure models that you added to the file. Exits with
    status 3 if a model could not be captured.
    """
    _check_ray(flags)
    method = method_of(flags)
    time_limit_ns = None if flags.time_limit is None else parse_time_limit_ns(flags.time_limit)
    from gpuledger.ops.database.operator_database import open_database
    from gpuledger.ops.measure.measured_device import find_device
    from gpuledger.services.campaign import Campaign, RayWorkers, measure_campaign
    from gpuledger.services.workloads import capture_all, refuse_left_out

    listed = _read_listed(flags)
    place = find_device(flags.device, force=flags.allow_busy)
    database, folder = open_database(flags.database_url or listed.database or DEFAULT_DATABASE), Path(flags.output)
    failures: list[str] = []

    def say_failed(wanted: WorkloadSpec, error: GpuLedgerError) -> None:
        failures.append(error.message)
        say_left_out(wanted, error)

    workloads = capture_all(listed.wanted, place, folder, say_failed)
    ray = None
    if flags.ray_address:
        ray = RayWorkers(flags.ray_address, flags.device or "cuda", flags.workers, flags.allow_busy)
    campaign = Campaign(place, database, method, energy_coverage_of(flags), time_limit_ns, ray)
    with progress_bar() as on_progress:
        pairs = measure_campaign(
            campaign,
            workloads,
            folder,
            trusted=flags.trust_files,
            on_progress=on_progress,
            measured=lambda done: print_notes(_said(done)),
        )
    _show(pairs, place, folder, as_json=flags.as_json)
    refuse_left_out(len(failures), len(listed.wanted), next(iter(failures), None))


def _check_ray(flags: CampaignFlags) -> None:
    """Refuse options that do not go with Ray, and a missing Ray, before anything is captured."""
    if flags.ray_address and flags.time_limit:
        raise UsageError(
            "campaign: --time-limit and --ray cannot be combined",
            hint="Leave --time-limit out, stop with Ctrl-C, and run the same command again to resume",
        )
    if flags.ray_address:
        from gpuledger.processes.ray_cluster import load_ray

        load_ray()


def _read_listed(flags: CampaignFlags) -> CampaignFile:
    """Return the models in the file. A file that is not trusted does not choose the database."""
    from gpuledger.ops.measure.campaign_file import read_campaign

    listed = read_campaign(Path(flags.config), trusted=flags.trust_files)
    if listed.database and not flags.database_url and not flags.trust_files:
        raise InputError(
            f"{flags.config}: database: the file may not choose the database without --trust-files",
            hint="Use --database, or --trust-files if you trust the file",
        )
    return listed


def _said(done: Filled | Campaigned) -> list[str]:
    """Return what was measured of operators, as lines."""
    from gpuledger.ops.measure.campaign import Campaigned

    if not isinstance(done, Campaigned):
        return [f"gpuledger: {line}" for line in filled_lines(done)]
    died = f", {counted(done.deaths, 'worker')} restarted" if done.deaths else ""
    again = f", {done.repeated} measured again where the GPU drifted" if done.repeated else ""
    return [f"gpuledger: {counted(done.measured, 'operator')} measured, {done.failed} failed{died}{again}"]


def _show(pairs: Sequence[Pair], place: Device, folder: Path, *, as_json: bool) -> None:
    """Print the comparison, and keep it in the folder as JSON and as a picture."""
    from gpuledger.services.campaign import write_pairs

    document = write_pairs(pairs, place.environment.to_json(), folder / "compare.json")
    if as_json:
        print_json(document)
    else:
        print_lines([place.environment.card, *lines_of(pairs)])
    try:
        draw_pairs_into(pairs, folder / "compare.png", place.environment.card)
    except UsageError as error:  # matplotlib is an extra
        print_notes([f"gpuledger: no picture: {error.message}"])
