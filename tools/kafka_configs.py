"""Writes the table of every config that Apache Kafka knows, from Apache Kafka's own definitions.

`python tools/kafka_configs.py` runs `KafkaConfigs.java` on the jars of `make jars` and writes
`src/chronik/metadata/kafka_configs.tsv`; with `--check` it fails when that file is not what it would write.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests import java

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "src/chronik/metadata/kafka_configs.tsv"
HEAD = "# Made by tools/kafka_configs.py from Apache Kafka 4.1. Nothing is -, the empty string is ''.\n"
COLUMNS = ("resource", "name", "type", "default", "low", "high", "choices", "change")


def table() -> str:
    rows = java.run(str(ROOT / "tools/KafkaConfigs.java")).lines()
    return HEAD + "\n".join(["\t".join(COLUMNS), *sorted(rows)]) + "\n"


def main() -> int:
    made = table()
    if "--check" in sys.argv[1:]:
        if TABLE.read_text() != made:
            print(f"{TABLE.relative_to(ROOT)} is stale: run `python tools/kafka_configs.py`")
            return 1
        return 0
    TABLE.write_text(made)
    print(f"{len(made.splitlines()) - 2} configs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
