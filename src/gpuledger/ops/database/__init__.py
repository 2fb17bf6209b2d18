"""The operator database: keys, environments and records of measurements, in SQLite or PostgreSQL.

The lowest package of ``ops``. Begin with ``records`` and ``database``.
"""
