"""The operator database: keys, environments and measurements, in SQLite or PostgreSQL.

The lowest package of ``ops``. Every other package of ``ops`` may import it. Start reading at ``records`` and
``operator_database``.
"""
