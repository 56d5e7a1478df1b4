"""MetricsData of clients: what is written is read; whatever else comes is refused, cut or skipped."""

from __future__ import annotations

import struct
import tracemalloc
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.client_state import Share
from chronik.records.compression import Compression, compress
from chronik.server.last_pushes import RECENT_MAX
from chronik.server.otlp import (
    ATTRIBUTES_MAX,
    FIELDS_MAX,
    POINTS_BYTES_MAX,
    POINTS_MAX,
    TEXT_CHARS_MAX,
    PackedPoints,
    read_metrics,
)
from chronik.server.telemetry import Telemetry, check_metrics

CLIENT = dict.fromkeys(
    ("client_id", "client_software_name", "client_software_version", "client_source_address"), "x"
) | {"client_source_port": "1"}


def varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: bytes | int) -> bytes:
    """An int becomes a varint, bytes a field with a length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def fixed(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 1) + data


def attributes(number: int, named: dict[str, str]) -> bytes:
    return b"".join(
        field(number, field(1, key.encode()) + field(2, field(1, value.encode())))
        for key, value in named.items()
    )


def point(value: float, named: dict[str, str]) -> bytes:
    time = fixed(3, struct.pack("<Q", 1_700_000_000_123_000_000))
    return time + fixed(4, struct.pack("<d", value)) + attributes(7, named)


def gauge(name: str, value: float, **named: str) -> bytes:
    return field(1, name.encode()) + field(3, b"ms") + field(5, field(1, point(value, named)))


def metrics_data(*metrics: bytes) -> bytes:
    return field(1, field(2, b"".join(field(2, one) for one in metrics)))


@given(
    st.lists(
        st.tuples(
            st.text(max_size=30),
            st.floats(allow_nan=False, allow_infinity=False),
            st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3),
        ),
        max_size=8,
    )
)
def test_what_is_written_is_read(wanted: list[tuple[str, float, dict[str, str]]]) -> None:
    data = metrics_data(*(gauge(name, value) for name, value, _ in wanted))
    named = metrics_data(
        *(
            field(1, name.encode()) + field(5, field(1, point(value, attributes_)))
            for name, value, attributes_ in wanted
        )
    )
    assert [(one.name, one.value) for one in read_metrics(data).unpack()] == [one[:2] for one in wanted]
    assert [dict(one.attributes) for one in read_metrics(named).unpack()] == [one[2] for one in wanted]
    assert all(one.time_ms == 1_700_000_000_123 for one in read_metrics(data).unpack())


def test_sums_and_histograms() -> None:
    number = fixed(6, struct.pack("<q", -3))
    total = field(1, b"sent") + field(7, field(1, number) + field(2, 1) + field(3, 1))
    spread = fixed(4, struct.pack("<Q", 5)) + fixed(5, struct.pack("<d", 12.5)) + attributes(9, {"a": "b"})
    histogram = field(1, b"latency") + field(9, field(1, spread) + field(2, 2))
    first, second = read_metrics(metrics_data(total, histogram)).unpack()
    assert (first.kind, first.value, first.is_delta, first.count) == ("sum", -3.0, True, None)
    assert (second.kind, second.value, second.is_delta, second.count) == ("histogram", 12.5, False, 5)
    assert second.attributes == (("a", "b"),)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        found = read_metrics(data)
    except ValueError:
        return
    assert len(found.unpack()) == found.count <= POINTS_MAX


def test_points_texts_and_work_are_bounded() -> None:
    many = read_metrics(metrics_data(*(gauge("x", 1.0) for _ in range(POINTS_MAX + 5))))
    assert (many.count, many.left_out) == (POINTS_MAX, 5)
    (long,) = read_metrics(metrics_data(gauge("x" * 999, 1.0))).unpack()
    assert len(long.name) == TEXT_CHARS_MAX
    with pytest.raises(ValueError, match="fields"):
        read_metrics(field(9, 1) * (FIELDS_MAX + 1))


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x0b", b"\xff" * 11, b"\x0a", b"\x09\x01"])
def test_bytes_that_are_no_metrics(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"field|wire|number"):
        read_metrics(data)
    assert check_metrics(0, data) is None


def test_only_the_clients_that_pushed_last_are_remembered() -> None:
    telemetry = Telemetry()
    ids = [uuid.UUID(int=number + 2) for number in range(RECENT_MAX + 3)]
    for number, instance in enumerate([*ids, ids[3]]):
        telemetry.keep(
            instance,
            f"User:{number % 3}",
            CLIENT,
            PackedPoints() if number else None,
            size_bytes=1,
            now_ms=number,
        )
    recent = telemetry.recent()
    assert [one.instance_id for one in recent][:2] == [ids[3], ids[-1]]
    assert len(recent) == RECENT_MAX
    assert ids[0] not in {one.instance_id for one in recent}
    assert telemetry.unreadable == 1


def test_no_principal_pushes_out_what_others_told() -> None:
    telemetry = Telemetry()
    telemetry.keep(uuid.UUID(int=2), "User:ada", CLIENT, PackedPoints(), size_bytes=1, now_ms=0)
    for number in range(3 * RECENT_MAX):
        telemetry.keep(
            uuid.UUID(int=number + 3), "User:mallory", CLIENT, PackedPoints(), size_bytes=1, now_ms=number
        )
    assert len(telemetry.recent()) == RECENT_MAX
    assert telemetry.recent()[-1].principal == "User:ada"


def wide_push() -> bytes:
    """As much as a push may say, in some 20 KB."""
    wide = chr(0x1F600) * (TEXT_CHARS_MAX - 2)
    named = {wide + f"{number:02}": wide for number in range(ATTRIBUTES_MAX)}
    data = metrics_data(*(gauge(wide, 1.0, **named) for _ in range(POINTS_MAX)))
    push = compress(Compression.ZSTD, data)
    assert len(push) < 32 * 1024 < len(data) // 20
    return push


def test_an_ordinary_push_is_kept_whole() -> None:
    name = "org.apache.kafka.consumer.coordinator.rebalance.latency.total"
    named = {"topic": "a-topic-of-usual-length", "partition": "17"}
    found = read_metrics(metrics_data(*(gauge(name, 1.5, **named) for _ in range(POINTS_MAX))))
    assert (found.count, found.left_out) == (POINTS_MAX, 0)


def test_what_is_kept_of_pushes_takes_little_memory() -> None:
    push, pushes = wide_push(), 20
    telemetry = Telemetry()
    tracemalloc.start()
    try:
        for number in range(pushes):
            found = check_metrics(Compression.ZSTD, push)
            client = {**CLIENT, "client_id": "x" * (30_000 + number)}
            telemetry.keep(uuid.UUID(int=number + 2), "User:a", client, found, size_bytes=1, now_ms=0)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(telemetry.recent()) == pushes
    assert held < pushes * (POINTS_BYTES_MAX + 4096) + 128 * 1024
    points = telemetry.recent()[0].points
    assert points is not None
    assert 0 < points.count < POINTS_MAX
    assert points.count + points.left_out == POINTS_MAX


def test_what_comes_after_the_limit_is_counted_as_far_as_it_can_be_read() -> None:
    metrics = [gauge("x", 1.0) for _ in range(POINTS_MAX + 7)]
    found = read_metrics(metrics_data(*metrics) + b"\x0b")
    assert (found.count, found.left_out) == (POINTS_MAX, 7)
    with pytest.raises(ValueError, match="wire"):
        read_metrics(metrics_data(*metrics[:POINTS_MAX]) + b"\x0b")


def keep(telemetry: Telemetry, number: int, principal: str, points: PackedPoints) -> None:
    telemetry.keep(uuid.UUID(int=number + 2), principal, CLIENT, points, size_bytes=1, now_ms=number)


def test_all_pushes_together_fit_into_their_share() -> None:
    share = Share("client_metrics", 200_000)
    telemetry = Telemetry(share=share)
    large = PackedPoints(bytes(30_000), 50)
    keep(telemetry, 0, "User:ada", large)
    for number in range(1, 30):
        keep(telemetry, number, "User:mallory", large)
        assert share.held_bytes <= share.bytes_max
    recent = telemetry.recent()
    assert share.held_bytes == sum(one.held_bytes for one in recent)
    assert [one.principal for one in recent] == ["User:mallory"] * (len(recent) - 1) + ["User:ada"]
    assert recent[0].instance_id == uuid.UUID(int=29 + 2)
    assert share.refused == 30 - len(recent)
    for number in range(30):  # again by the same clients: nothing is counted twice
        keep(telemetry, number, "User:mallory", PackedPoints())
    assert share.held_bytes == sum(one.held_bytes for one in telemetry.recent())


def test_a_push_beyond_the_share_is_kept_without_its_points_or_not_at_all() -> None:
    telemetry = Telemetry(share=Share("client_metrics", 4_000))
    keep(telemetry, 0, "User:ada", PackedPoints(bytes(30_000), 50, 3))
    (one,) = telemetry.recent()
    assert one.points == PackedPoints(left_out=53)
    share = Share("client_metrics", 100)
    telemetry = Telemetry(share=share)
    keep(telemetry, 0, "User:ada", PackedPoints())
    assert (telemetry.recent(), share.held_bytes, share.refused) == ([], 0, 1)
