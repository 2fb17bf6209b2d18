"""Export a run's tables for other tools: CSV, Parquet, JSON, SQL and PyTorch's memory snapshot.

``cli``, ``live``, ``integrations``, ``services`` and ``ops`` may import it. Start reading at ``tables``.
"""
