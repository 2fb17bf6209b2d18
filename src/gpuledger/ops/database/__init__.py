"""The operator database: keys, environments and measurements, in SQLite or PostgreSQL.

The lowest package of ``ops``. Start reading at ``records`` and ``operator_database``.
"""
