"""Notes of which the same is said of several source lines are one note."""

from __future__ import annotations

from gpuledger.simulate.estimate.follow import one_note_for_each_text

ITEM = ".item() returned a placeholder value, because nothing is computed."
WHOLE = "Several threads use the GPU at once."


def test_the_same_text_of_several_lines_is_one_note_in_the_place_of_the_first() -> None:
    said = [f"train.py:3: {ITEM}", WHOLE, "train.py:5: a condition was taken as False: nothing is computed.",
            f"lib/metrics.py:70: {ITEM}"]  # fmt: skip
    assert one_note_for_each_text(said) == [
        f"train.py:3, lib/metrics.py:70: {ITEM}",
        WHOLE,
        "train.py:5: a condition was taken as False: nothing is computed.",
    ]


def test_many_lines_are_counted() -> None:
    four, five = ([f"train.py:{number}: {ITEM}" for number in range(1, count + 1)] for count in (4, 5))
    assert one_note_for_each_text(four) == [f"train.py:1, train.py:2, train.py:3, train.py:4: {ITEM}"]
    assert one_note_for_each_text(five) == [f"train.py:1, train.py:2, train.py:3 and 2 more lines: {ITEM}"]


def test_a_sentence_about_no_line_stays_as_it_is() -> None:
    said = ["Approximate: 3 of 4", "a: b", "The bounds include: this."]
    assert one_note_for_each_text(said) == said
