"""Command lines and messages without their secrets.

If in doubt, a value is hidden. Secrets are recognized by name (of an option, variable, header or URL parameter) or by
position (in a URL before the ``@``), not by their form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

HIDDEN = "***"
_PARTS = ("key", "token", "password", "passwd", "passphrase", "secret", "credential")
"""Anywhere in a name: ``--wandb-key``, ``HF_TOKEN``, ``PGPASSWORD``."""
_WORDS = frozenset(
    {"pwd", "pw", "pass", "auth", "authorization", "authentication", "dsn", "header", "headers", "cred", "creds"}
    | {"cookie", "cookies", "bearer", "otp", "pin", "sig", "signature", "sas"}
)
"""As a word of a name, which hyphens, dots, underscores or capitals part: ``--auth``, ``DB_PWD``, ``dbPwd``."""
_SCHEMES = ("bearer", "basic", "digest", "token")
"""Words of a header between its name and the secret."""
_WITH_USER = ("-u", "--user", "--proxy-user", "--login")
"""Options that take ``NAME:PASSWORD``."""
_NAME_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_WORD = re.compile(r"""(["'({\[]*)(-{0,2})([\w.-]*\w)(["']?[=:])?(.*)""", re.DOTALL)
_ASSIGNED = re.compile(r"(?<![\w.-])([\w.-]+)=")
_VALUE = re.compile(r"""\"[^"]*"?|'[^']*'?|[^\s"'&;,]+""")
# Their parts have a greatest length so that no text takes more than time in proportion.
_PASSWORD_IN_URL = re.compile(r"""(://[^\s/?#@:"']{0,256}):[^\s"']{0,4096}@""")
_TOKEN_IN_URL = re.compile(r"""(https?://)[^\s/?#@:"']{1,4096}@""", re.IGNORECASE)

Next = Literal["", "all", "after colon"]
"""What of the next word is to be hidden."""


def redact(arguments: Sequence[str]) -> list[str]:
    """Return the same number of arguments, without secrets.

    Hides the values of options, variables and headers with names of secrets (``--api-key X``, ``--pwd=X``,
    ``DB_PWD=X``, ``Authorization: Bearer X``), of ``-p``, passwords in URLs and in ``--user NAME:PASSWORD``; also
    inside an argument that is a command line of its own, as of ``bash -c``. What follows an option is hidden unless it
    begins with ``--``.
    """
    kept = []
    following: Next = ""
    for argument in arguments:
        name = argument.partition("=")[0]
        is_line = not following and any(map(str.isspace, argument)) and not _assigns_secret(argument, name)
        if is_line:
            kept.append(_line(argument))
        else:
            shown, following = _word(argument, following)
            kept.append(shown)
    return kept


def hide_credentials(text: str) -> str:
    """Return a text without passwords in URLs, and without the values of secrets in ``NAME=VALUE``."""
    text = _TOKEN_IN_URL.sub(rf"\1{HIDDEN}@", _PASSWORD_IN_URL.sub(rf"\1:{HIDDEN}@", text))
    kept, end = [], 0
    for found in _ASSIGNED.finditer(text):
        if found.start() < end or not is_secret(found[1]):
            continue
        value = _VALUE.match(text, found.end())
        if value:
            kept += [text[end : found.end()], HIDDEN]
            end = value.end()
    return "".join([*kept, text[end:]])


def is_secret(name: str) -> bool:
    """Return whether the value of what has this name is a secret."""
    plain = name.lower()
    return any(part in plain for part in _PARTS) or not _WORDS.isdisjoint(
        word.lower() for word in _NAME_WORDS.findall(name)
    )


def _assigns_secret(argument: str, name: str) -> bool:
    return name != argument and not any(map(str.isspace, name)) and is_secret(name)


def _line(line: str) -> str:
    """Return a command line inside an argument without its secrets."""
    following: Next = ""
    words = re.split(r"(\s+)", line)
    for place in range(0, len(words), 2):
        if words[place]:
            words[place], following = _word(words[place], following)
    return "".join(words)


def _word(word: str, hide: Next) -> tuple[str, Next]:
    """Return a word as it is kept, and what of the next one is to be hidden."""
    if hide and not word.startswith("--"):
        if word.lower() in _SCHEMES:
            return word, hide
        return (HIDDEN if hide == "all" else _after_colon(word)), ""
    found = _WORD.fullmatch(word)
    if found is None:
        return hide_credentials(word), ""
    opening, dashes, name, sign, value = found.groups()
    if (dashes or sign) and is_secret(name):
        return (word, "all") if not value else (f"{opening}{dashes}{name}{sign or ''}{HIDDEN}", "")
    if dashes == "-" and name.startswith("p"):  # a password to some programs, a port to others
        return (word, "all") if word == "-p" else (f"-p{HIDDEN}", "")
    if f"{dashes}{name}" in _WITH_USER:
        return (f"{dashes}{name}{sign}{_after_colon(value)}", "") if sign else (word, "after colon")
    return hide_credentials(word), "all" if name.lower() == "bearer" else ""


def _after_colon(value: str) -> str:
    user, colon, password = value.partition(":")
    return f"{user}:{HIDDEN}" if colon and password else value
