"""What other tools tell of the same programs, and what each tool costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pages.blocks import block
from pages.results import Results, about, read, table, wrap

PEERS = "peers/results/h200/side_by_side.json"
SCRIPT = "peers/side_by_side.py"
NAMES = {
    "profiler": "torch.profiler",
    "snapshot": "memory snapshot",
    "mem_tracker": "MemTracker",
    "zeus": "Zeus",
    "flop_counter": "FLOP counter",
    "nvidia_smi": "nvidia-smi",
    "gpuledger": "gpuledger",
}
SHORT = {"told, unverified": "unverified", "missing": "–", "partly right": "partly", "not graded": "ungraded"}
NONE = "no tool"


@block("questions to other tools")
def questions() -> list[str]:
    """Return the grade of each tool's answer to each question."""
    return question_lines(read(PEERS))


@block("costs of other tools")
def costs() -> list[str]:
    """Return what each tool costs on each model."""
    return cost_lines(read(PEERS))


def question_lines(results: Results) -> list[str]:
    """Return the table of questions, the reasons behind some cells, and what is right in all."""
    asked, told = results["questions"], results["environment"]
    rows = [[asked[name]["text"], *(SHORT.get(one, one) for one in grades(results, name))] for name in asked]
    right = [str(sum(grades(results, name)[at] == "right" for name in asked)) for at in range(len(NAMES))]
    unavailable = [f"{NAMES[tool]}: {why}." for tool, why in results["unavailable"].items()]
    not_graded = [f'- ungraded, "{asked[name]["text"]}": {why}.' for name, why in results["not_graded"].items()]
    return [
        *wrap(
            f"{about(results, SCRIPT)}. Python {told['python']}, CUDA {told['cuda']}. One run of each program.",
            *unavailable,
        ),
        "",
        *table(["question", *NAMES.values()], [*rows, ["right answers", *right]], len(NAMES) + 1),
        "",
        *[line for reason in (*not_graded, *reasons(results)) for line in wrap(reason)],
    ]


def grades(results: Results, question: str) -> list[str]:
    """Return the grades of the answers to one question, in the order of the columns."""
    answers = results["answers"][question]
    return [answers[tool]["grade"] if tool in answers else "not asked" for tool in NAMES]


def reasons(results: Results) -> list[str]:
    """Return a point for each answer that was not asked for, is wrong, or is to be read with a note."""
    found = []
    for key, why in results["not_asked"].items():
        tool, _, question = key.partition(", ")
        found.append(f'- not asked, {NAMES[tool]}, "{results["questions"][question]["text"]}": {why}.')
    for question, answers in results["answers"].items():
        for tool, one in answers.items():
            note = results["notes"].get(f"{tool}, {question}")
            if one["grade"] in ("wrong", "partly right"):
                told = f"It says `{one['value']}`. The truth is {truth_of(results, question)}."
                why = f" How it is read: {note}." if note else ""
                found.append(f'- {one["grade"]}, {NAMES[tool]}, "{results["questions"][question]["text"]}" {told}{why}')
    return found


def truth_of(results: Results, question: str) -> str:
    """Return the truth of a question in words."""
    name = results["questions"][question]["truth"].partition(" ±")[0]
    facts = results["facts"]["long" if question == "step_energy" else "planted"]
    if name in facts:
        return f"`{facts[name]:.3f}`" if name.endswith("_j") else f"`{facts[name]:,}`"
    at = {"line": 1, "leak": 3, "out_of_memory": 3}.get(question)
    return f"`{results['planted_lines'][at]}`" if at else "the layer `wide`"


def cost_lines(results: Results) -> list[str]:
    """Return tables of costs: a row for each tool, a column for each model."""
    models = results["models"]
    rounds = min(cost["output_s"]["n"] for found in models.values() for cost in found["tools"].values())
    bare = ", ".join(f"{name} {found['bare_step_ms']['median']:.1f} ms" for name, found in models.items())
    return [
        *wrap(
            f"{about(results, SCRIPT)}. Median and range of {rounds} rounds. Steps without a tool: {bare}.",
            f"The tools are on for {results['steps_inside']} steps. Ratios are to the steps just before.",
        ),
        "",
        "Time of a step while the tool is on:",
        "",
        *cost_table(results, "steps_inside", ratio),
        "",
        "Time of a step after the tool is off:",
        "",
        *cost_table(results, "steps_after", ratio),
        "",
        "Time to write the output, in s:",
        "",
        *cost_table(results, "output_s", seconds),
        "",
        "Time to write the output and read the peak and the largest layer from it, in s, one round only:",
        "",
        *cost_table(results, "answer_s", lambda cost: f"{cost['median']:.2f}", answering(results)),
        "",
        "Size of the output, in KiB:",
        "",
        *cost_table(results, "file_bytes", kib),
    ]


def answering(results: Results) -> list[str]:
    """Return the tools that answer both questions of which the time is taken."""
    answers = results["answers"]
    return [tool for tool in NAMES if all(answers[name][tool]["grade"] != "missing" for name in ("peak", "layer"))]


def cost_table(results: Results, key: str, shown: Callable[[Results], str], tools: Iterable[str] = ()) -> list[str]:
    """Return one cost of each tool on each model."""
    models = results["models"]
    wanted = list(tools) or (["none"] if shown is ratio else []) + list(NAMES)
    rows = [
        [NAMES.get(tool, NONE), *(shown(found["tools"][tool][key]) for found in models.values())]
        for tool in wanted
        if all(tool in found["tools"] for found in models.values())
    ]
    return table(["tool", *models], rows)


def ratio(cost: Results) -> str:
    """Return a ratio and its range."""
    return f"× {cost['median']:.2f} ({cost['lowest']:.2f}–{cost['highest']:.2f})"


def seconds(cost: Results) -> str:
    """Return seconds and their range."""
    return f"{cost['median']:.3f} ({cost['lowest']:.3f}–{cost['highest']:.3f})"


def kib(cost: Results) -> str:
    """Return a size in KiB and its range."""
    median, lowest, highest = (cost[key] / 1024 for key in ("median", "lowest", "highest"))
    return f"{median:,.1f} ({lowest:,.1f}–{highest:,.1f})"
