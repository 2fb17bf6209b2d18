"""The words that no help, error, label or page may use, each with the term to use instead; and the longest sentence.

The check reads prose: code in backticks, options and addresses are taken out first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

LONGEST_SENTENCE_WORDS: Final = 28

INSTEAD: Final[dict[str, str]] = {
    # The metaphor of the tool's name.
    r"(?<![\w.])ledgers?": "run",
    r"(?:on|to) the accounts? of": "attributed to",
    r"accounts?(?! for)": "breakdown by category or module",
    r"books?": "operator database",
    r"postings?|journals?": "the field's term for it",
    r"specimens?|rosters?|sightings?|shelf|shelves": "the field's term for it",
    r"joules? (?:\w+ ){0,2}spent|spent (?:\w+ ){0,2}joules?": "energy used",
    # GPUs.
    r"cards?": "GPU",
    r"virtual (?:GPUs?|devices?)": "simulated GPU",
    r"that (?:is|are) not t?here": "simulated GPU, a given GPU",
    r"host-bound": "GPU idle waiting for the CPU",
    # Memory.
    r"remainders?": "unaccounted memory",
    r"left unexplained": "unaccounted memory",
    # Steps and measurements.
    r"bare|undisturbed": "unprofiled",
    r"unrecorded steps?": "unprofiled step",
    r"(?:memory|energy|time|timing) pass(?:es)?": "memory recording, energy measurement, timing measurement",
    r"(?:recording|recorded) windows?|windows? of recording|the window": "recorded steps",
    r"(?<!in )joules?": "energy; J as the unit",
    r"(?<!in )watts?": "power; W as the unit",
    r"readings|(?:a|no|each|first|last|next) reading": "sample",
    r"own costs?|costs? of (?:recording|profiling|measuring)": "overhead",
    r"mov(?:e|es|ed) no more than": "within noise, not significant",
    r"share of truths|truths": "confidence level",
    r"random order": "random seed",
    r"stand-ins?": "placeholder value",
    # Processes and commands.
    r"(?:ends?|ended|ending|exits?|exited) with (?:code )?\d+": "exits with status N",
    r"exit codes?": "exit status",
    r"child(?:ren)?(?! modules?)": "process, program",
    r"lived to": "the process ended before it could",
    r"go(?:es)? on with the rest|the same command goes on": "run the same command again to resume",
    r"(?<!time )tak(?:e|es|en|ing) (?:it |them |one |both |files? )?(?:in|out)": "import, export",
    # Turns of phrase.
    r"tells?|told|telling": "report, show, estimate",
    r"(?:holds?|held|holding) (?:[\w-]+ ){1,5}to": "check against",
    r"what (?:(?:the|a|an|each|every|this|one|its) )?[\w']+ (?:holds?|held|takes?|took|lacks?)": "a noun",
    r"by another tool's word": "reported by another tool",
    r"lack(?:s|ed|ing)?": "does not have, missing from",
    r"such as it is": "nothing, or say what is missing",
    r"so (?:many|long)": "a number, as long as",
    r"for want of": "because there is no",
    r"lest": "so that … not",
    r"(?<=[,;] )else|or else": "otherwise, if",
    r"whose": "of the, with",
    r"lives|lived": "is in",
    r"where(?:of|from|upon)|there(?:of|from|upon)|whilst": "plain words",
}
"""What must not be said, as patterns of whole words in any case, and what to say."""

_NOT_PROSE: Final = re.compile(
    r"```.*?```|``[^`]*``|`[^`]*`"  # code
    r"|\bhttps?://\S+"
    r"|(?<![\w-])--?[a-zA-Z][\w-]*",  # options
    re.DOTALL,
)
_PATTERNS: Final = {re.compile(rf"(?<!\w)(?:{pattern})(?!\w)", re.IGNORECASE): say for pattern, say in INSTEAD.items()}
_SENTENCE_END: Final = re.compile(r"(?<=[.!?:;])\s+(?=[^a-z])|\n\s*\n|\s*\[default: ")


@dataclass(frozen=True)
class Finding:
    """Words that are not plain, and what to say instead."""

    found: str
    instead: str

    def __str__(self) -> str:
        return f"{self.found!r}: say {self.instead}"


def prose_of(text: str) -> str:
    """Return a text without code, options and addresses; a sign stays where each was, so that the length stays."""
    return _NOT_PROSE.sub("⟨⟩", text)


def unplain_words(text: str) -> list[Finding]:
    """Return the words of a text that are on the list, in the order of the list."""
    prose = " ".join(prose_of(text).split())
    return [Finding(found[0], say) for pattern, say in _PATTERNS.items() for found in pattern.finditer(prose)]


def long_sentences(text: str, longest_words: int = LONGEST_SENTENCE_WORDS) -> list[str]:
    """Return the sentences of more than ``longest_words`` words; a colon, a semicolon or an empty line ends one too."""
    sentences = (" ".join(one.split()) for one in _SENTENCE_END.split(prose_of(text)))
    return [one for one in sentences if len(one.split()) > longest_words]
