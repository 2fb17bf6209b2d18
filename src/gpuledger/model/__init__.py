"""The data model of a run: tables, totals, journal and directory. No torch, no rendering."""
