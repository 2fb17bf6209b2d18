"""Several ranks or devices side by side."""

from __future__ import annotations

from gpuledger.report.html.sections.section import Section, column, script, table

SECTION = Section(
    name="ranks",
    heading="Ranks",
    scripts=(script("rank_set.js"), script("ranks.js")),
    body='<dl id="rank-entries" class="facts"></dl>\n<p id="rank-key" class="caption"></p>\n'
    '<div id="rank-multiples" class="rank-grid"></div>\n<div id="rank-colors" class="rank-colors"></div>\n'
    '<p id="ranks-caption" class="caption"></p>\n'
    + table(
        "ranks-body",
        [
            column("Rank"),
            column("Recorded peak allocated", "bytes", "recorded_peak_allocated_bytes"),
            column(""),
            column("Recorded peak reserved", "bytes", "recorded_peak_reserved_bytes"),
            column("Step time", "bytes", "step_time_ns"),
            column("Peak at"),
        ],
        frame_id="ranks-table",
    ),
    is_hidden=True,
)
