"""Budgets follow the memory that a container or a unit may take."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from chronik.assembly import limits_of, store_options
from chronik.client_state import ClientState
from chronik.config import Settings, table
from chronik.config_sources import fit_memory, load_settings
from chronik.memory import BASE_BYTES, FULL_BYTES_MIN, Budgets, budgets, control_group_limit
from chronik.model import REMOTE_READ_BYTES_MAX, UNFLUSHED_BYTES_MAX, Limits
from chronik.open_files import FileBudget

MIB = 1 << 20
GIB = 1 << 30


def total(parts: Budgets) -> int:
    return BASE_BYTES + int(sum(dataclasses.astuple(parts)))


def test_without_a_limit_or_with_a_wide_one_the_defaults_hold() -> None:
    limits, settings = Limits(), Settings()
    for parts in (budgets(None), budgets(6 * GIB)):
        assert parts == Budgets(
            request_bytes=limits.request_memory_bytes_max,
            stalled_bytes=limits.stalled_memory_bytes_max,
            unflushed_bytes=UNFLUSHED_BYTES_MAX,
            client_state_bytes=settings.client_state_bytes_max,
            remote_cache_bytes=settings.remote_cache_bytes,
            remote_index_bytes=settings.remote_cache_bytes,
            remote_read_bytes=REMOTE_READ_BYTES_MAX,
            search_bytes=settings.search_memory_bytes_max,
            sql_bytes=settings.sql_memory_bytes_max,
        )


@given(st.integers(FULL_BYTES_MIN, 64 * GIB))
def test_all_parts_together_fit(limit: int) -> None:
    assert total(budgets(limit)) <= limit


@given(st.integers(0, 64 * GIB), st.integers(0, 64 * GIB))
def test_more_memory_takes_nothing_from_any_part(one: int, other: int) -> None:
    less, more = sorted((one, other))
    pairs = zip(dataclasses.astuple(budgets(less)), dataclasses.astuple(budgets(more)), strict=True)
    assert all(a <= b for a, b in pairs)


@given(st.integers(0, 64 * GIB))
def test_each_part_is_what_its_setting_may_be_and_a_whole_request_fits(limit: int) -> None:
    parts = budgets(limit)
    rules = {name: table()[name].rule.minimum or 0 for name in table()}
    assert parts.client_state_bytes >= rules["client_state_bytes_max"]
    assert parts.remote_cache_bytes >= rules["remote_cache_bytes"]
    assert parts.search_bytes >= rules["search_memory_bytes_max"]
    assert parts.sql_bytes >= rules["sql_memory_bytes_max"]
    assert 2 * parts.stalled_bytes >= Limits().frame_bytes_max


def group(folder: Path, lines: str) -> Path:
    path = folder / "cgroup"
    path.write_text(lines)
    return path


def test_the_lowest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    own = group(tmp_path, "0::/system.slice/chronik.service\n")
    inner = tmp_path / "fs" / "system.slice" / "chronik.service"
    inner.mkdir(parents=True)
    assert control_group_limit(own, tmp_path / "fs") is None
    (inner / "memory.max").write_text("max\n")
    assert control_group_limit(own, tmp_path / "fs") is None
    (inner.parent / "memory.max").write_text(f"{2 * GIB}\n")
    assert control_group_limit(own, tmp_path / "fs") == 2 * GIB
    (inner / "memory.max").write_text(f"{GIB}\n")
    assert control_group_limit(own, tmp_path / "fs") == GIB


def test_in_a_container_the_mounted_group_is_its_own(tmp_path: Path) -> None:
    own = group(tmp_path, "0::/not/to/be/seen/from/here\n")
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    assert control_group_limit(own, tmp_path) == GIB


def test_the_first_version_of_control_groups_has_a_number_where_there_is_no_limit(tmp_path: Path) -> None:
    own = group(tmp_path, "5:devices:/\n4:memory:/docker/abc\n")
    folder = tmp_path / "memory" / "docker" / "abc"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert control_group_limit(own, tmp_path) is None
    (folder / "memory.limit_in_bytes").write_text(f"{GIB}\n")
    assert control_group_limit(own, tmp_path) == GIB


def test_budgets_that_somebody_set_stay_as_they_are() -> None:
    resolved = fit_memory(load_settings({"sql_memory_bytes_max": str(2 * GIB)}, {}, None), 2 * GIB)
    settings = resolved.settings
    assert settings.memory_bytes_max == 2 * GIB
    assert settings.sql_memory_bytes_max == 2 * GIB
    assert settings.search_memory_bytes_max == budgets(2 * GIB).search_bytes < GIB
    assert resolved.origins["search_memory_bytes_max"] == "part of memory_bytes_max"
    assert not resolved.warnings
    limits = limits_of(settings, FileBudget.of_process())
    assert (
        limits.request_memory_bytes_max == budgets(2 * GIB).request_bytes < Limits().request_memory_bytes_max
    )
    options = store_options(settings, ClientState().producer_ids)
    assert options.unflushed_bytes_max == budgets(2 * GIB).unflushed_bytes < UNFLUSHED_BYTES_MAX


def test_the_setting_wins_over_the_group_and_little_is_warned_of() -> None:
    resolved = fit_memory(load_settings({"memory_bytes_max": str(GIB)}, {}, None), 8 * GIB)
    assert resolved.settings.memory_bytes_max == GIB
    assert "not for busy search and SQL" in resolved.warnings[0]


def test_without_any_limit_nothing_changes() -> None:
    resolved = load_settings({}, {}, None)
    assert fit_memory(resolved, None) is resolved
