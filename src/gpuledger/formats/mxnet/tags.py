"""Parse MXNet's tags: the category by their grammar, and the module by their scope."""

from __future__ import annotations

import re

CATEGORY_OF_STRUCT = {
    "data entry": "activation",
    "temp space": "workspace",
    "param": "weight",
    "param grad": "gradient",
    "optimizer state": "optimizer_state",
    "aux state": "buffer",
    "ephemeral": "temporary",
    "unknown": "other",
}
"""The data structures in the seven-column format."""

_PARTS = (
    (re.compile(r"in_arg$"), "weight"),
    (re.compile(r"arg_grad$"), "gradient"),
    (re.compile(r"aux(_state(_re)?)?$"), "buffer"),
    (re.compile(r"_?head_grad(_\d+)?$"), "activation_gradient"),
    (re.compile(r"(data_entry|forward_features)$"), "activation"),
    (re.compile(r"_?optimizer(_|$)|opt(imizer)?_state"), "optimizer_state"),
    (re.compile(r"workspace|temp_space|cudnn_dropout_state|proposal_"), "workspace"),
    (re.compile(r"reserve_space"), "activation"),
    (re.compile(r"unknown$|<unk>$|untagged$|warning!|init$"), "other"),
)
_STRUCTURE = {
    *("in_arg", "arg_grad", "aux_state", "aux_state_re", "aux", "head_grad", "data_entry", "forward_features"),
    *("symbol", "resource", "init", "workspace", "optimizer_state", "<unk>", "unknown"),
}
_UUID = re.compile(r"[0-9a-f]{8}_[0-9a-f]{4}_[0-9a-f]{4}_[0-9a-f]{4}_[0-9a-f]{12}_")


def category_of(tag: str) -> str:
    """Return the category of a part of the tag's grammar; the output of a scope is an activation, others ``other``."""
    parts = tag.split(":")
    for pattern, category in _PARTS:
        if any(pattern.match(part) for part in parts):
            return category
    return "activation" if module_of(tag) else "other"


def module_of(tag: str) -> str:
    """Return the scope of a tag as a module path, ``hybridsequential.dense0``; "" if it has none."""
    scope = _UUID.sub("", tag).split(":")[:-1]
    while scope and scope[-1] in _STRUCTURE:
        scope.pop()
    if not scope or scope[0] in _STRUCTURE or any(not part or "+" in part for part in scope):
        return ""
    return ".".join(part.replace(".", "_") for part in scope)
