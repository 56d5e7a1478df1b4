"""`chronik produce`: records from lines, or made up in bulk."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from chronik.cli.bulk import BatchMaker
from chronik.cli.client import (
    AsJson,
    Bootstrap,
    CommandFailed,
    Timeout,
    parse_pairs,
    print_json,
    progress,
    run,
)
from chronik.model import TopicPartition
from chronik.records.compression import Compression
from chronik.words import counted, human_bytes

if TYPE_CHECKING:
    from chronik.client import Cluster, Producer

_READ_BYTES: Final = 64 * 1024
_ACKS: Final = {"0": 0, "1": 1, "all": -1, "-1": -1}
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Sent:
    records: int
    size_bytes: int
    seconds: float


def register(app: typer.Typer) -> None:
    app.command()(produce)


def produce(
    topic: Annotated[str, typer.Argument(help="topic to write to", show_default=False)],
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="lines of a file instead of stdin")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", help="what stands between key and value in a line"
        ),
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="a header for every record, repeatable"),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, metavar="N", help="always this partition")
    ] = None,
    acks: Annotated[str, typer.Option("--acks", metavar="0|1|all", help="who must have a record")] = "all",
    compression: Annotated[
        str, typer.Option("--compression", "-z", metavar="CODEC", help=", ".join(_CODECS))
    ] = "none",
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, metavar="N", help="number of records to make up")
    ] = None,
    size: Annotated[
        int, typer.Option("--size", min=0, metavar="BYTES", help="size of each made-up record's value")
    ] = 100,
    as_json: AsJson = False,
    timeout: Timeout = 30.0,
    servers: Bootstrap = None,
) -> None:
    """Write records: one per line of stdin or of a file, or made up in bulk.

    Examples:

      echo hello | chronik produce greetings

      chronik produce users --key-separator : --file users.txt

      chronik produce orders --header source=shop --partition 0

      chronik produce load --count 1000000 --size 256 --acks 1
    """
    acks_number, codec = acks_and_codec(acks, compression)
    if count is not None and (file is not None or key_separator is not None):
        raise CommandFailed("--count makes records up, so --file and --key-separator do not go with it")
    if key_separator == "":
        raise CommandFailed("--key-separator needs at least one character")
    pairs = [(name, value.encode()) for name, value in parse_pairs(headers or (), "header").items()]
    source = _Lines(key_separator.encode() if key_separator else None, pairs, partition)

    async def work(cluster: Cluster) -> Sent:
        from chronik.client import Producer

        loop = asyncio.get_running_loop()
        producer = Producer(cluster, acks=acks_number, compression=codec)
        started = loop.time()
        async with producer:
            if count is not None:
                targets = await _targets(cluster, topic, partition)
                records, size_bytes = await BatchMaker(size, pairs, codec).send(producer, targets, count)
            else:
                records, size_bytes = await source.send(producer, topic, file)
        return Sent(records, size_bytes, loop.time() - started)

    _report(topic, run(servers, work, timeout=timeout), as_json=as_json, bulk=count is not None)


def acks_and_codec(acks: str, compression: str) -> tuple[int, int]:
    """What a client sends for these words."""
    if acks not in _ACKS:
        raise CommandFailed(f"--acks {acks!r} is not valid: write 0, 1 or all")
    if compression not in _CODECS:
        raise CommandFailed(f"--compression {compression!r} is not known: {', '.join(_CODECS)} are")
    return _ACKS[acks], Compression.named(compression)


def _report(topic: str, sent: Sent, *, as_json: bool, bulk: bool) -> None:
    per_second = sent.records / sent.seconds if sent.seconds else 0.0
    if as_json:
        print_json(
            {
                "topic": topic,
                "records": sent.records,
                "bytes": sent.size_bytes,
                "seconds": round(sent.seconds, 3),
                "records_per_second": round(per_second),
            }
        )
        return
    line = f"{counted(sent.records, 'record')} to {topic}"
    if bulk or sent.records >= 10_000:
        rate = human_bytes(sent.size_bytes / sent.seconds) if sent.seconds else "-"
        line += f" in {sent.seconds:.1f} s ({per_second:,.0f} records/s, {rate}/s)"
    print(line)


@dataclass(frozen=True, slots=True)
class _Lines:
    """How a line becomes a record."""

    key_separator: bytes | None
    headers: list[tuple[str, bytes]]
    partition: int | None

    async def send(self, producer: Producer, topic: str, file: Path | None) -> tuple[int, int]:
        if file is None:
            if sys.stdin.isatty():
                print("One record per line; Ctrl-D ends.", file=sys.stderr)
            return await self._send_lines(producer, topic, sys.stdin.fileno(), None)
        try:
            descriptor = os.open(file, os.O_RDONLY)
            total = os.fstat(descriptor).st_size
        except OSError as error:
            raise CommandFailed(f"{file} cannot be read: {(error.strerror or str(error)).lower()}") from None
        try:
            return await self._send_lines(producer, topic, descriptor, total)
        finally:
            os.close(descriptor)

    async def _send_lines(
        self, producer: Producer, topic: str, descriptor: int, total: int | None
    ) -> tuple[int, int]:
        records = size_bytes = read_bytes = 0
        with progress(f"to {topic}", total, unit="bytes", enabled=total is not None) as show:
            async for lines, chunk_bytes in _line_groups(descriptor):
                read_bytes += chunk_bytes
                for line in lines:
                    key, value = self.split(line, records + 1)
                    await producer.send(topic, value, key=key, headers=self.headers, partition=self.partition)
                    records += 1
                    size_bytes += len(line)
                show(read_bytes)
        return records, size_bytes

    def split(self, line: bytes, number: int) -> tuple[bytes | None, bytes]:
        if self.key_separator is None:
            return None, line
        key, separator, value = line.partition(self.key_separator)
        if not separator:
            shown = self.key_separator.decode(errors="replace")
            raise CommandFailed(
                f"line {number} has no {shown!r} between key and value; lines before it were sent"
            )
        return key, value


async def _line_groups(descriptor: int) -> AsyncIterator[tuple[list[bytes], int]]:
    """Lines as they come in, and how many bytes were read for them."""
    rest = b""
    async for chunk in _chunks(descriptor):
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines, len(chunk)
    if rest:
        yield [rest], 0


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    """What comes in on a file descriptor. Waits in the loop, not in a thread, so Ctrl-C ends it at once."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    waits = not stat.S_ISREG(os.fstat(descriptor).st_mode)
    while True:
        if waits:
            readable.clear()
            try:
                loop.add_reader(descriptor, readable.set)
            except PermissionError:
                waits = False  # such as /dev/null: always ready, so it cannot be waited for
                continue
            try:
                await readable.wait()
            finally:
                loop.remove_reader(descriptor)
        chunk = os.read(descriptor, _READ_BYTES)
        if not chunk:
            return
        yield chunk


async def _targets(cluster: Cluster, topic: str, partition: int | None) -> list[TopicPartition]:
    there = sorted(await cluster.partitions(topic, create=True))
    if partition is not None and partition not in there:
        raise CommandFailed(f"topic {topic!r} has no partition {partition}, only 0-{there[-1]}")
    return [TopicPartition(topic, number) for number in (there if partition is None else [partition])]
