"""Kafka's default partitioner: the numbers are the Java client's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.client.options import BrokerAddress, parse_bootstrap
from chronik.client.partitioner import murmur2, partition_for_key


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_agrees_with_the_java_client(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


@given(st.binary(max_size=64), st.integers(1, 1000))
def test_a_key_has_one_partition_in_range(key: bytes, count: int) -> None:
    assert 0 <= partition_for_key(key, count) < count


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", [BrokerAddress("a", 1)]),
        ("a, b:2 ,", [BrokerAddress("a", 9092), BrokerAddress("b", 2)]),
        ("[::1]:5", [BrokerAddress("::1", 5)]),
        ("[::1]", [BrokerAddress("::1", 9092)]),
    ],
)
def test_bootstrap_lists(text: str, addresses: list[BrokerAddress]) -> None:
    assert list(parse_bootstrap(text)) == addresses


@pytest.mark.parametrize("text", ["", " , ", "a:b", ":1", "a:0", "a:70000", "::1", "[::1", "[::1]x", "a:1:2"])
def test_what_is_no_bootstrap_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"host:port"):
        parse_bootstrap(text)
