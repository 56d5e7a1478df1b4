"""What no answer may show: files beside the archive that belong to no topic, and a topic nobody names."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

WORD: Final = "canary-that-no-answer-may-show"
FOLDER: Final = Path(tempfile.gettempdir()) / f"chronik-fuzz-{os.getuid()}"
"""The same in every run, since inputs that name it can then be sent again."""
TEXT: Final = FOLDER / "canary.csv"
PARQUET: Final = FOLDER / "canary.parquet"
SECRET_TOPIC: Final = "fuzz-secret"
MADE: Final = "fuzz-was-here"
"""Name of every file that a statement of the fuzzers tries to write."""


def plant() -> None:
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    TEXT.write_text(f"a\n{WORD}\n")
    pq.write_table(pa.table({"a": [WORD]}), PARQUET)
    for path in FOLDER.glob(f"{MADE}*"):
        path.unlink()


def written(data_dir: Path) -> list[str]:
    """What is there that nobody may have written, as problems."""
    found = [*FOLDER.rglob(f"{MADE}*"), *data_dir.rglob(f"{MADE}*")]
    problems = [f"a statement wrote {path}" for path in found]
    if WORD not in TEXT.read_text() or pq.read_table(PARQUET).to_pydict() != {"a": [WORD]}:
        problems.append("a statement changed a file of the archive")
    return problems


def shown(answer: bytes | bytearray) -> str | None:
    return f"the answer shows the canary: {bytes(answer[-300:])!r}" if WORD.encode() in answer else None
