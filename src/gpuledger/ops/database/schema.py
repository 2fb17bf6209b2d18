"""Tables of an operator database in SQLite and PostgreSQL, and migrations between versions.

The steps are a list of functions, not Alembic's scripts: there are few tables, a step has to run inside the database's
own transaction on both stores, and a database is opened by whoever has the file, with no configuration beside it.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

METADATA = sa.MetaData()

VERSIONS = sa.Table("gpuledger_book", METADATA, sa.Column("schema_version", sa.Integer, nullable=False))

KEYS = sa.Table(
    "keys",
    METADATA,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("operator", sa.Text, nullable=False, index=True),
    sa.Column("inputs", sa.JSON, nullable=False),
    sa.Column("flags", sa.JSON, nullable=False),
)

ENVIRONMENTS = sa.Table(
    "environments",
    METADATA,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("card", sa.Text, nullable=False),
    sa.Column("driver", sa.Text),
    sa.Column("torch", sa.Text, nullable=False),
    sa.Column("cuda", sa.Text),
    sa.Column("flags", sa.JSON, nullable=False),
)

RECORDS = sa.Table(
    "records",
    METADATA,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("key_digest", sa.String(64), sa.ForeignKey(KEYS.c.digest), nullable=False, index=True),
    sa.Column("environment_digest", sa.String(64), sa.ForeignKey(ENVIRONMENTS.c.digest), nullable=False),
    sa.Column("method", sa.JSON, nullable=False),
    sa.Column("time_median_ns", sa.Double),
    sa.Column("time_low_ns", sa.Double),
    sa.Column("time_high_ns", sa.Double),
    sa.Column("energy_median_j", sa.Double),
    sa.Column("energy_low_j", sa.Double),
    sa.Column("energy_high_j", sa.Double),
    sa.Column("base_w", sa.Double),
    sa.Column("blocks", sa.JSON, nullable=False),
    sa.Column("kernels", sa.JSON, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("measured_ns", sa.BigInteger, nullable=False),
    sa.Column("flops", sa.BigInteger),
    sa.Column("bytes", sa.BigInteger),
)


def _first(connection: sa.Connection) -> None:
    METADATA.create_all(connection, [VERSIONS, KEYS, ENVIRONMENTS, RECORDS])


STEPS: tuple[Callable[[sa.Connection], None], ...] = (_first,)
"""``STEPS[n]`` migrates a database from version n to n + 1."""

VERSION = len(STEPS)


def version_of(connection: sa.Connection) -> int:
    """Return the version of a database; 0 without tables.

    Raises:
        ValueError: the version is not a whole number. SQLite keeps whatever was written, whatever the column's type.
    """
    if not sa.inspect(connection).has_table(VERSIONS.name):
        return 0
    version = connection.execute(sa.select(VERSIONS.c.schema_version)).scalar()
    if version is not None and (type(version) is not int or version < 0):
        raise ValueError(f"schema version {version!r:.40} is not a whole number")
    return version or 0


def migrate(connection: sa.Connection) -> None:
    """Migrate a database to the newest version, in the caller's transaction."""
    version = version_of(connection)
    for step in STEPS[version:]:
        step(connection)
    connection.execute(sa.delete(VERSIONS))
    connection.execute(sa.insert(VERSIONS).values(schema_version=max(version, VERSION)))
