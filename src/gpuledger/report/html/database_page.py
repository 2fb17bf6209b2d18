"""The operator database as one offline page: a table with search and sorting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

_COLUMNS = (
    ("operator", "operator"), ("gpu", "GPU"), ("torch", "torch"), ("mode", "mode"), ("time_us", "time, µs"),
    ("half_width_percent", "± %"), ("energy_mj", "energy, mJ"), ("status", "status"),
)  # fmt: skip
LONG_CHARACTERS = 120
"""Longer texts are cut until the mouse is over their row. An operator of an optimizer has hundreds of tensors."""
_STYLE = """body{font:14px/1.4 system-ui,sans-serif;margin:2em;color:#222}
table{border-collapse:collapse}td,th{padding:.2em .8em;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}
th{cursor:pointer;position:sticky;top:0;background:#fff}td.n{text-align:right;font-variant-numeric:tabular-nums}
td:first-child{font-family:monospace;max-width:60em;overflow-wrap:anywhere}
td:nth-child(2){white-space:nowrap}
td div{display:-webkit-box;-webkit-box-orient:vertical;-webkit-line-clamp:3;overflow:hidden}
tr:hover div{display:block}
input{padding:.3em;width:30em;margin:1em 0}"""
_SCRIPT = """const body=document.querySelector('tbody'),rows=[...body.rows];
document.querySelector('input').addEventListener('input',e=>{const t=e.target.value.toLowerCase();
for(const r of rows)r.hidden=!r.textContent.toLowerCase().includes(t)});
document.querySelectorAll('th').forEach((th,i)=>{let up=1;th.addEventListener('click',()=>{up=-up;
const v=r=>{const d=r.cells[i].dataset.v;return d===undefined?r.cells[i].textContent:+d};
rows.sort((a,b)=>(v(a)>v(b)?1:v(a)<v(b)?-1:0)*up).forEach(r=>body.append(r))})});"""


def render_database(rows: Iterable[Mapping[str, Any]], title: str, about: str = "") -> str:
    """Return a page of records. Each row has the names in the table's head as keys; missing figures are None."""
    head = "".join(f"<th>{escape(label)}</th>" for _, label in _COLUMNS)
    body = "\n".join(f"<tr>{''.join(_cell(row.get(name)) for name, _ in _COLUMNS)}</tr>" for row in rows)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f"<p>{escape(about)}</p>"
        '<input type="search" aria-label="search" placeholder="search">'
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table><script>{_SCRIPT}</script></body></html>\n"
    )


def _cell(value: Any) -> str:
    if value is None:
        return "<td>–</td>"
    if isinstance(value, float):
        return f'<td class="n" data-v="{value!r}">{value:,.3f}</td>'
    text = escape(str(value))
    return f"<td>{text if len(text) < LONG_CHARACTERS else f'<div>{text}</div>'}</td>"
