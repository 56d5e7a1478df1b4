"""The paths that the values of an index have, and the file that keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from chronik.published.paths import PATHS_FILE, PATHS_MAX, Paths


def covers(paths: Paths, value: dict[str, Any]) -> bool:
    return paths.cover(msgspec.json.encode(value), value)


def test_paths_are_learned_and_kept(tmp_path: Path) -> None:
    paths = Paths()
    assert covers(paths, {"a": 1, "b": {"c": [2, {"d": 3}]}})
    assert list(paths) == ["a", "b.c", "b.c.d"]
    assert not paths.is_saved
    paths.save(tmp_path)
    assert paths.is_saved
    assert list(Paths.load(tmp_path)) == list(paths)


@pytest.mark.parametrize("name", ["", "a\\b", "line\nbreak"])
def test_a_strange_name_is_not_covered(name: str) -> None:
    paths = Paths()
    assert not covers(paths, {name: 1})
    assert list(paths) == []


def test_more_paths_than_a_search_can_ask_for_are_not_covered() -> None:
    paths = Paths(f"p{number}" for number in range(PATHS_MAX - 1))
    assert not covers(paths, {"x": 1, "y": 2})
    assert covers(paths, {"x": 1})
    assert not covers(paths, {"y": 1})
    assert covers(paths, {"p0": 5})


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    Paths(["a", "b"]).save(tmp_path)
    file = tmp_path / PATHS_FILE
    file.write_bytes(file.read_bytes().replace(b"b", b"c"))
    with pytest.raises(ValueError, match="not what was written"):
        Paths.load(tmp_path)
