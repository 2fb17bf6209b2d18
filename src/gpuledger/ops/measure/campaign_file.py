"""Campaign files: models with sizes and modes. Also folders of the older ``summary.yml`` files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from gpuledger.errors import InputError, UsageError
from gpuledger.files.reading import read_text, reading
from gpuledger.ops.workloads.models import RANDOM, parse_model, refuse_code_of_file
from gpuledger.ops.workloads.workload import MODES, Mode
from gpuledger.ops.workloads.workload_spec import WorkloadSpec

try:
    import yaml
except ImportError as error:  # the extra is not installed
    raise UsageError("--config: PyYAML is not installed", hint="pip install 'gpuledger[ops]'") from error

LARGEST_BYTES = 256 << 10
"""Maximum size of a file. PyYAML takes seconds for more."""
MOST_VALUES = 100_000
"""Maximum number of values in a file, with aliases expanded."""
OLD_NAME = "summary.yml"
MODEL_KEYS = ("model", "weights", "inputs", "batch", "mode", "optimizer", "autocast")
TOP_KEYS = ("models", "gpu", "database", *MODEL_KEYS[1:])
OLD_KEYS = ("done", "input_size", "model_name", "weights_name")
_KINDS: dict[str, tuple[type, ...]] = {
    "model": (str,), "weights": (str,), "batch": (int,), "optimizer": (str,), "autocast": (str, type(None)),
    "gpu": (str,), "database": (str,),
}  # fmt: skip


@dataclass(frozen=True)
class CampaignFile:
    """The models of a campaign. Their progress is in the database."""

    wanted: tuple[WorkloadSpec, ...]
    gpu: str | None = None
    database: str | None = None


def read_campaign(path: Path, *, trusted: bool = False) -> CampaignFile:
    """Return the campaign in a file, or in a folder of older ``summary.yml`` files.

    Args:
        path: The file or folder.
        trusted: Allow code that the file names, see :func:`gpuledger.ops.workloads.models.refuse_code_of_file`.

    Raises:
        InputError: it cannot be read, has an unknown key or a value of the wrong kind, or names code to run.
    """
    with reading(path):
        campaign = _read_campaign(path)
    if not trusted:
        for one in campaign.wanted:
            refuse_code_of_file(parse_model(one.model), one.weights, str(path))
    return campaign


def _read_campaign(path: Path) -> CampaignFile:
    if path.is_dir():
        places = sorted(path.rglob(OLD_NAME))
        if not places:
            raise InputError(
                f"{path}: the directory has no {OLD_NAME} file", hint="Name a file, for example --config campaign.yml"
            )
        return CampaignFile(tuple(_read_old(place) for place in places))
    value = _load(path)
    if path.name == OLD_NAME:
        return CampaignFile((_read_old(path),))
    _check(path, "", value, TOP_KEYS)
    models = value.get("models")
    if not isinstance(models, list) or not models:
        raise InputError(
            f"{path}: models: expected a list of models", hint="For example models: [{model: torchvision:resnet50}]"
        )
    shared = {name: value[name] for name in MODEL_KEYS[1:] if name in value}
    wanted = [one for number, model in enumerate(models) for one in _wanted(path, number, model, shared)]
    return CampaignFile(tuple(dict.fromkeys(wanted)), value.get("gpu"), value.get("database"))


def _load(path: Path) -> dict[str, Any]:
    with reading(path, "not YAML"):
        value = _parse(read_text(path, LARGEST_BYTES))
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected keys and values", hint=f"Use these keys: {', '.join(TOP_KEYS)}")
    return value


def _parse(text: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        YAMLError: it is not YAML.
        ValueError: with aliases, it has too many values, or contains itself.
    """
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        _count(root, {})
        return None if root is None else loader.construct_document(root)
    finally:
        loader.dispose()


def _count(node: Any, known: dict[int, int]) -> int:
    """Return the number of values of a node, with aliases expanded.

    Raises:
        ValueError: there are too many, or the node contains itself.
    """
    if id(node) in known:
        if not known[id(node)]:
            raise ValueError("an alias refers to the value that contains it")
        return known[id(node)]
    known[id(node)] = 0
    inner = node.value if isinstance(node, yaml.CollectionNode) else []
    pairs = (one if isinstance(one, tuple) else (one,) for one in inner)
    count = 1 + sum(_count(one, known) for pair in pairs for one in pair)
    if count > MOST_VALUES:
        raise ValueError(f"its aliases expand to more than {MOST_VALUES:,} values")
    known[id(node)] = count
    return count


def _check(path: Path, place: str, value: Mapping[Any, Any], known: tuple[str, ...]) -> None:
    """Raise for an unknown key or a value of the wrong kind."""
    for name, one in value.items():
        if name not in known:
            near = get_close_matches(str(name), known, 1)
            hint = f"Did you mean {near[0]}?" if near else f"Use one of {', '.join(known)}"
            raise InputError(f"{path}: {place}unknown key {name!r:.80}", hint=hint)
        kinds = _KINDS.get(name)
        if kinds and (not isinstance(one, kinds) or isinstance(one, bool)):
            raise InputError(f"{path}: {place}{name}: {one!r:.80}: expected {_kind_text(kinds[0])}")
    batch = value.get("batch", 1)
    if batch < 1:
        raise InputError(f"{path}: {place}batch: {batch}: expected 1 or more")


def _kind_text(kind: type) -> str:
    return "a whole number" if kind is int else "a string"


def _wanted(path: Path, number: int, model: Any, shared: Mapping[str, Any]) -> Iterator[WorkloadSpec]:
    """Yield the workloads of one entry: each mode with each size."""
    place = f"models[{number}]: "
    if isinstance(model, str):
        model = {"model": model}
    if not isinstance(model, dict):
        raise InputError(f"{path}: {place}expected a model's name, or keys and values")
    _check(path, place, model, MODEL_KEYS)
    if "model" not in model:
        raise InputError(f"{path}: {place}the model is missing", hint="For example model: torchvision:resnet50")
    values = {**shared, **model}
    modes = _listed(values.pop("mode", "inference"))
    sizes = _listed(values.pop("inputs", None))
    for mode in modes:
        if mode not in MODES:
            raise InputError(f"{path}: {place}mode: {mode!r:.80}, expected {' or '.join(MODES)}")
        for size in sizes:
            yield WorkloadSpec(**values, mode=cast(Mode, mode), inputs=_size(path, place, size))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _size(path: Path, place: str, size: Any) -> str | None:
    """Return a size as text. In YAML it can also be a list of numbers."""
    if size is None or isinstance(size, str):
        return size
    if isinstance(size, list) and size and all(isinstance(n, int) and n > 0 for n in size):
        return "x".join(map(str, size))
    raise InputError(f"{path}: {place}inputs: {size!r:.80}: expected a size", hint="For example inputs: [32x3x224x224]")


def _read_old(path: Path) -> WorkloadSpec:
    """Return the workload of an older file: a model of torchvision with random weights.

    ``weights_name`` is ignored, because it would be downloaded and does not affect time or energy. So is ``done``.
    """
    value = _load(path)
    _check(path, "", value, OLD_KEYS)
    name, size = value.get("model_name"), value.get("input_size")
    if not isinstance(name, str):
        raise InputError(f"{path}: model_name: {name!r:.80}: expected a string")
    if not name.isidentifier():
        raise InputError(
            f"{path}: model_name: {name!r:.80}: not a model of torchvision", hint="For example model_name: resnet50"
        )
    if not (isinstance(size, list) and size and all(type(n) is int and n > 0 for n in size)):
        raise InputError(
            f"{path}: input_size: {size!r:.80}: expected a list of sizes",
            hint="For example input_size: [32, 3, 224, 224]",
        )
    return WorkloadSpec(f"torchvision:{name}", inputs="x".join(map(str, size)), weights=RANDOM)
