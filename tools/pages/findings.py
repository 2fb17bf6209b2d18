"""How right the savings of suggested changes are: predicted, and measured with the changed training."""

from __future__ import annotations

from pages.blocks import block
from pages.results import GIB, about, middle, percent, read, table, worst, wrap

FINDINGS = "memory/results/h200/findings.json"
CHANGES = {"checkpoint": "checkpoint activations", "half": "halve the batch size", "autocast": "autocast with bfloat16"}


@block("savings of suggested changes")
def savings() -> list[str]:
    """Return predicted and measured savings of three changes of four trainings."""
    results = read(FINDINGS)
    rows, errors = [], []
    for name, model in results["models"].items():
        for change, found in model["changes"].items():
            errors.append(found["error_frac"])
            sizes = [f"{found[key] / GIB:.2f} GiB" for key in ("predicted_bytes", "measured_bytes")]
            rows.append([name, CHANGES[change], *sizes, f"{found['error_frac']:+.1%}".replace("%", " %")])
    return [
        *wrap(
            f"{about(results, 'memory/findings.py')}. {len(errors)} changes of {len(results['models'])} trainings, one",
            f"run of each: {percent(middle(errors), 1)} (median) and {percent(worst(errors), 1)} (worst) off.",
        ),
        "",
        *table(["training", "change", "predicted saving", "measured saving", "error"], rows, 2),
    ]
