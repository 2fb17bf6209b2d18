"""``PYTORCH_CUDA_ALLOC_CONF``: parsed into settings of the simulated allocator, and written from recorded ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

from gpuledger.analyze.posting.replay import AllocatorSettings
from gpuledger.errors import UsageError

CANDIDATES = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
)
"""The settings to try. The first is the default."""

_NO_EFFECT = frozenset(
    {
        "garbage_collection_threshold",
        "pinned_use_cuda_host_register",
        "pinned_num_register_threads",
        "release_lock_on_cudamalloc",
        "max_non_split_rounding_mb",
    }
)
"""Settings that do not affect reserved bytes unless a memory fraction is set."""


DEFAULT = "default"
_DEFAULTS = {"pinned_num_register_threads": 1}
"""Settings with a default other than off, as torch 2.11 to 2.13 have them in a snapshot."""


def alloc_conf_text(settings: Mapping[str, object]) -> str:
    """Return recorded settings as PyTorch's users write them, ``expandable_segments:True,max_split_size_mb:128``.

    Those with their default are left out; ``default`` if all have it.

    Args:
        settings: ``allocator_settings`` of a snapshot.
    """
    own = {name: value for name, value in settings.items() if not name.startswith("PYTORCH_")}
    divisions, split_bytes = own.pop("roundup_power2_divisions", None), own.pop("max_split_size", None)
    parts = [f"{name}:{value}" for name, value in own.items() if value and value not in (-1, _DEFAULTS.get(name, 0))]
    if isinstance(split_bytes, int) and 0 < split_bytes < 1 << 62:
        parts.append(f"max_split_size_mb:{split_bytes >> 20}")
    if isinstance(divisions, Mapping) and any(divisions.values()):
        numbers = sorted((int(size_mib), int(number)) for size_mib, number in divisions.items())
        parts.append(f"roundup_power2_divisions:{_divisions_text(numbers)}")
    return ",".join(sorted(parts)) or DEFAULT


def _divisions_text(numbers: list[tuple[int, int]]) -> str:
    """Return size classes in MiB and their divisions as ``_divisions`` reads them: ``4``, ``[256:1,512:2,>:4]``."""
    runs = [[*run] for _, run in groupby(numbers, key=lambda pair: pair[1])]
    if len(runs) == 1:
        return str(numbers[0][1])
    first, *middle, last = runs
    pairs = [first[-1], *(pair for run in middle for pair in run)]
    texts = [f"{size_mib}:{number}" for size_mib, number in pairs if number]
    return f"[{','.join([*texts, *([f'>:{last[0][1]}'] if last[0][1] else [])])}]"


def parse_alloc_conf(text: str) -> AllocatorSettings:
    """Return the settings in a text such as ``expandable_segments:True,max_split_size_mb:64``.

    Raises:
        UsageError: a setting is unknown, or its value cannot be parsed.
    """
    settings = AllocatorSettings()
    for part in _parts(text):
        name, colon, value = part.partition(":")
        if not colon:
            raise UsageError(
                f"--alloc-conf {part}: expected NAME:VALUE", hint="For example --alloc-conf expandable_segments:True"
            )
        settings = _apply(settings, name.strip(), value.strip())
    return settings


def _parts(text: str) -> list[str]:
    """Return the settings of a line. Commas inside brackets do not separate them."""
    parts, depth = [""], 0
    for letter in text.replace(" ", ""):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part]


def _apply(settings: AllocatorSettings, name: str, value: str) -> AllocatorSettings:
    if name == "expandable_segments":
        if value not in ("True", "False"):
            raise UsageError(f"--alloc-conf {name}:{value}: expected True or False")
        return replace(settings, expandable=value == "True")
    if name == "max_split_size_mb":
        return replace(settings, max_split_bytes=_number(name, value, 21) << 20)
    if name == "roundup_power2_divisions":
        return replace(settings, power2_divisions=_divisions(name, value))
    if name == "backend" and value != "native":
        raise UsageError(f"--alloc-conf backend:{value}: only the native allocator is simulated")
    if name in _NO_EFFECT or name == "backend":
        return settings
    raise UsageError(
        f"--alloc-conf {name}: unknown setting", hint="Use a setting such as expandable_segments or max_split_size_mb"
    )


def _divisions(name: str, value: str) -> tuple[tuple[int, int], ...]:
    """Return ``(size class, divisions)`` pairs from one number for all classes, or from ``[256:1,512:2,>:4]`` in MiB.

    Source: torch's ``AcceleratorAllocatorConfig::parseRoundUpPower2Divisions``. The first class also applies to all
    smaller ones, and ``>`` to all after the last. A class between two given ones is not divided.
    """
    classes = [1 << power for power in range(20, 36)]
    if not value.startswith("["):
        return tuple((size, _number(name, value, 1)) for size in classes)
    numbers = [0] * len(classes)
    last = -1
    for pair in value.strip("[]").split(","):
        size, _, text = pair.partition(":")
        number = _number(name, text, 1)
        if size == ">":
            numbers[last + 1 :] = [number] * (len(classes) - last - 1)
            continue
        place = min(_number(name, size, 1).bit_length() - 1, len(classes) - 1)
        if last < 0:
            numbers[:place] = [number] * place
        numbers[place], last = number, place
    return tuple(zip(classes, numbers, strict=True))


def _number(name: str, text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise UsageError(f"--alloc-conf {name}:{text}: expected a whole number of {least} or more")
    return int(text)
