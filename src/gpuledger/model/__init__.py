"""What a run is: its tables, its accounts, its journal and its directory. No torch, no rendering."""
