"""Models by name: ``torchvision:resnet50``, ``timm:…``, ``transformers:…``, ``package.module:factory``.

A name from the command line may import and call anything. A name from a file may not: see
:func:`refuse_code_of_file`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import nn

from gpuledger.errors import InputError, UsageError
from gpuledger.simulate.gpu.card import let_torchvision_import

RANDOM = "random"
_BACKBONE = "weights_backbone"
TRUST_FILES = "--trust-files"
"""Option that allows files to name code. No file can set it."""
_KIND = re.compile(r"[\w-]+", re.ASCII)
"""A kind of model of Transformers, such as ``gpt2`` or ``xlm-roberta``: neither a path nor a repository."""


_DOWNLOADS = ("pretrained", "weights")
"""Beginnings of options that make a library load weights, such as ``pretrained`` and ``weights_backbone``."""


@dataclass(frozen=True)
class ModelName:
    """A model name: ``LIBRARY:NAME?option=value&…``."""

    library: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Return the name as it was given."""
        options = "&".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{self.library}:{self.name}" + (f"?{options}" if options else "")


def parse_model(text: str) -> ModelName:
    """Return the model in ``text``. A name without a library is torchvision's.

    Raises:
        UsageError: it is not a model name.
    """
    plain, _, query = text.partition("?")
    library, colon, name = plain.rpartition(":")
    if not name or (colon and not library):
        raise UsageError(
            f"--model {text}: not a model's name", hint="For example torchvision:resnet50, or package.module:factory"
        )
    return ModelName(library or "torchvision", name, dict(_option(text, part) for part in query.split("&") if part))


def _option(text: str, part: str) -> tuple[str, Any]:
    name, equals, value = part.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"--model {text}: {part!r}: expected option=value")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def refuse_code_of_file(model: ModelName, weights: str, source: str) -> None:
    """Do nothing if a file may name this model: one of a known library, with numbers as options.

    Everything else can run code or read other files: a factory in a user's module, a folder, a repository of the
    Transformers hub, and options with text, such as ``checkpoint_path`` of timm.

    Args:
        model: The model that the file names.
        weights: The weights that the file names.
        source: The file, for the error.

    Raises:
        InputError: the model needs the user's consent.
    """
    hint = f"If you trust the file as you trust a program, allow it with {TRUST_FILES}"
    if model.library not in _BUILDERS:
        raise InputError(f"{source}: model {model.text}: a file must not name Python code to run", hint=hint)
    texts = [name for name, value in model.options.items() if not _is_number(value)]
    if texts:
        raise InputError(
            f"{source}: model {model.text}: {texts[0]}: a file must not set options other than numbers", hint=hint
        )
    downloads = [name for name in model.options if name.startswith(_DOWNLOADS)]
    if downloads:
        raise InputError(f"{source}: model {model.text}: {downloads[0]}: a file must not ask for a download", hint=hint)
    is_path = Path(model.name).exists() or not (model.name.isidentifier() or _KIND.fullmatch(model.name))
    if model.library == "transformers" and is_path:
        raise InputError(f"{source}: model {model.text}: a file must not name a directory or a repository", hint=hint)
    if model.library == "transformers" and weights != RANDOM:
        raise InputError(f"{source}: weights {weights}: a file must not name weights of Transformers", hint=hint)


def _is_number(value: Any) -> bool:
    """Return whether an option's value is a number, true, false, None, or a list of these."""
    return (
        value is None
        or isinstance(value, int | float)
        or (isinstance(value, list | tuple) and all(map(_is_number, value)))
    )


def build_model(model: ModelName, weights: str = RANDOM) -> nn.Module:
    """Return a model, on the CPU.

    Raises:
        UsageError: there is no such model or weights, or its library is not installed.
        InputError: it cannot be created.
    """
    let_torchvision_import()  # other libraries import it, too
    builder = _BUILDERS.get(model.library, _build_own)
    try:
        return builder(model, weights)
    except (UsageError, InputError):
        raise
    except ImportError as error:
        known = model.library in _BUILDERS
        if known and getattr(error, "name", None) == model.library:
            raise UsageError(
                f"--model {model.text}: {model.library} is not installed", hint=f"pip install {model.library}"
            ) from error
        hint = None if known else "Run the command in the directory of your module, or install the module"
        raise UsageError(f"--model {model.text}: {error}", hint=hint) from error
    except Exception as error:  # whatever the model's own code raises
        raise InputError(f"{model.text}: {type(error).__name__}: {' '.join(str(error).split())}") from error


def _build_torchvision(model: ModelName, weights: str) -> nn.Module:
    models: Any = importlib.import_module("torchvision.models")
    if model.name not in models.list_models():
        raise _unknown(model, models.list_models())
    if weights == RANDOM:
        # some towers warn that their initial weights will change; a seed is not what is wanted here
        given: dict[str, Any] = {"init_weights": False} if model.name in ("googlenet", "inception_v3") else {}
        if _BACKBONE in inspect.signature(models.get_model_builder(model.name)).parameters:
            given[_BACKBONE] = None  # by default torchvision downloads them, also where the model's own are random
        return models.get_model(model.name, weights=None, **{**given, **model.options})  # type: ignore[no-any-return]
    known = [one.name for one in models.get_model_weights(model.name)]
    short = weights.rpartition(".")[2]
    if short not in [*known, "DEFAULT"]:
        raise UsageError(
            f"--weights {weights}: {model.text} has no such weights", hint=f"Use one of {', '.join(known)}"
        )
    return models.get_model(model.name, weights=short, **model.options)  # type: ignore[no-any-return]


def _build_timm(model: ModelName, weights: str) -> nn.Module:
    timm: Any = importlib.import_module("timm")
    if not timm.is_model(model.name):
        raise _unknown(model, timm.list_models())
    if weights == RANDOM:
        return timm.create_model(model.name, pretrained=False, **model.options)  # type: ignore[no-any-return]
    tagged = model.name if weights == "DEFAULT" else f"{model.name.partition('.')[0]}.{weights}"
    return timm.create_model(tagged, pretrained=True, **model.options)  # type: ignore[no-any-return]


def _build_transformers(model: ModelName, weights: str) -> nn.Module:
    """Return a model of Transformers: a class (``GPT2LMHeadModel``), a kind (``gpt2``), a folder, or one of the hub."""
    library: Any = importlib.import_module("transformers")
    if weights != RANDOM:
        return library.AutoModel.from_pretrained(  # type: ignore[no-any-return]
            model.name if weights == "DEFAULT" else weights, **model.options
        )
    found = getattr(library, model.name, None)
    if isinstance(found, type) and issubclass(found, nn.Module):
        return found(found.config_class(**model.options))  # type: ignore[attr-defined]
    kinds: Any = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    if model.name in kinds:
        configuration = kinds[model.name](**model.options)
    elif Path(model.name).is_dir() or "/" in model.name:
        configuration = library.AutoConfig.from_pretrained(model.name, **model.options)
    else:
        raise _unknown(model, [*kinds, *(name for name in dir(library) if name.endswith(("Model", "LM")))])
    return library.AutoModel.from_config(configuration)  # type: ignore[no-any-return]


def _build_own(model: ModelName, weights: str) -> nn.Module:
    """Return the model of a factory in a user's module, which can be in the current directory."""
    if weights != RANDOM:
        raise UsageError(
            f"--weights {weights}: does not apply to {model.text}, a factory of your own", hint="Leave --weights out"
        )
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    module = importlib.import_module(model.library)
    factory: Callable[..., Any] | None = getattr(module, model.name, None)
    if factory is None:
        raise _unknown(model, [name for name in dir(module) if not name.startswith("_")])
    made = factory(**model.options) if callable(factory) else factory
    if not isinstance(made, nn.Module):
        raise UsageError(f"--model {model.text}: returned {type(made).__name__}, expected a torch.nn.Module")
    return made


_BUILDERS: dict[str, Callable[[ModelName, str], nn.Module]] = {
    "torchvision": _build_torchvision,
    "timm": _build_timm,
    "transformers": _build_transformers,
}


def _unknown(model: ModelName, names: list[str]) -> UsageError:
    near = get_close_matches(model.name, names, 3)
    hint = f"Did you mean {', '.join(f'{model.library}:{name}' for name in near)}?" if near else None
    return UsageError(f"--model {model.text}: {model.library} has no model {model.name}", hint=hint)


@contextmanager
def without_initial_weights() -> Iterator[None]:
    """Disable ``torch.nn.init``: initial weights are not needed if nothing is computed."""
    places = {name: getattr(nn.init, name) for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")}
    try:
        for name in places:
            setattr(nn.init, name, lambda tensor, *_args, **_how: tensor)
        yield
    finally:
        for name, function in places.items():
            setattr(nn.init, name, function)
