"""Make the operator measurements and the fitted model that gpuledger ships: `python tools/make_shipped_operators.py`.

The measurements are those of tests/data/h200, without the times of single bursts. The fit takes about half a minute.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpuledger.ops.database.contents import Contents, read_parquet, write_parquet
from gpuledger.ops.database.readable import ExportedDatabase
from gpuledger.ops.database.records import Record
from gpuledger.ops.predict.choose import model_name, open_environment_records, roof_of_records
from gpuledger.ops.predict.fit import fit
from gpuledger.ops.predict.predict import save_model

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data" / "h200"
DATABASES = (DATA / "operator_database.parquet", DATA / "operator_database_more.parquet")
SHIPPED = ROOT / "src" / "gpuledger" / "ops" / "database" / "measured" / "nvidia_h200.parquet"
MODELS = ROOT / "src" / "gpuledger" / "ops" / "predict" / "measured"


def without_bursts(record: Record) -> Record:
    """Return a record without the times of single bursts, which are half of a database."""
    return replace(record, blocks=tuple(block for block in record.blocks if block.get("kind") != "time"))


def shipped_contents() -> Contents:
    """Return the measurements that ship."""
    found = [read_parquet(path) for path in DATABASES]
    return Contents(
        {digest: key for one in found for digest, key in one.keys.items()},
        {digest: environment for one in found for digest, environment in one.environments.items()},
        tuple(without_bursts(record) for one in found for record in one.records),
    )


def main() -> None:
    """Write the measurements, and the model that is fitted to them as a user's gpuledger reads them."""
    SHIPPED.parent.mkdir(exist_ok=True)
    write_parquet(shipped_contents(), SHIPPED)
    shelf = open_environment_records(ExportedDatabase(SHIPPED.name, read_parquet(SHIPPED)))
    for old in MODELS.glob("*.model"):
        old.unlink()
    save_model(fit(shelf.examples, roof_of_records(shelf), shelf.digest), MODELS / model_name(shelf.digest))


if __name__ == "__main__":
    main()
