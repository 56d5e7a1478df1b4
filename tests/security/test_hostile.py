"""A hostile client on a closed listener, beside a well-behaved one that must not notice.

`make hostile` does the same with `--hostile-connections=10000`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import jwt
import pytest
from confluent_kafka import KafkaError, Message, Producer
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from chronik.client import Admin, ClientOptions, Cluster, Consumer
from chronik.client.admin import NewTopic
from chronik.client.offsets import LATEST, list_offsets
from chronik.client.options import parse_bootstrap
from chronik.client.security import put_user
from chronik.model import AUDIT_TOPIC, ErrorCode, TopicPartition
from chronik.security import oauth
from chronik.security.scram import MECHANISMS, ScramClient
from chronik.server.handlers import all_handlers
from chronik.server.sasl import BEFORE_LOGIN
from chronik.testing import free_ports
from chronik.wire.api import ApiKey
from chronik.wire.schema import decode_response, encode_request
from tests.node import ChronikNode
from tests.process import HOST
from tests.security.rights import LOGIN, cases, outcome, read_table
from tests.tls import make_certificate

PASSWORD = "alice's password"
HOSTILE_HOST = "127.0.0.2"
"""Another address than the neighbour's: a new login from where somebody guesses is refused, and the neighbour
may have to log in again at any time."""
MEMORY_BUDGET_MIB = 96
"""How much a node may grow under all of this, with up to 1,000 connections of strangers open at once."""
AUDIT_BUDGET_KIB = 512
"""What the audit log may say of a flood of refusals: 200 of a user in a minute, each below a KiB."""
SUMS_MAX = 4
AT_ONCE = 200
IDLE_KIB_MAX = 80
"""Per idle TLS connection, bulk or not; 20 and 42 were measured."""


@dataclass
class Neighbour:
    """A client that minds its own business: one record after the other, each acknowledged."""

    bootstrap: str
    cert: Path
    failures: list[KafkaError] = field(default_factory=list)
    delivered: int = 0
    slowest_s: float = 0.0

    def __enter__(self) -> Neighbour:
        self._news = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(self.cert),
                "sasl.mechanisms": "SCRAM-SHA-256",
                "sasl.username": "alice",
                "sasl.password": PASSWORD,
                "retries": 0,
                "linger.ms": 0,
                "error_cb": self.failures.append,
            }
        )
        while not self._stop.is_set():
            began = time.monotonic()
            producer.produce("orders", b"x", on_delivery=self._delivered)
            producer.flush(30)
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.failures.append(error)
            return
        with self._news:
            self.delivered += 1
            self._news.notify_all()

    def goes_on(self) -> None:
        """Wait for a few more of its records."""
        with self._news:
            wanted = self.delivered + 5
            assert self._news.wait_for(lambda: self.delivered >= wanted, 30)


@dataclass
class Target:
    node: ChronikNode
    port: int
    cert: Path
    key: ec.EllipticCurvePrivateKey
    tls: ssl.SSLContext

    def rss_mib(self) -> float:
        status = Path(f"/proc/{self.node.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    @contextlib.asynccontextmanager
    async def connected(self, *, tls: bool = True) -> AsyncIterator[Talk]:
        reader, writer = await asyncio.open_connection(
            HOST, self.port, ssl=self.tls if tls else None, local_addr=(HOSTILE_HOST, 0)
        )
        try:
            yield Talk(reader, writer)
        finally:
            writer.transport.abort()


@dataclass
class Talk:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, api_key: ApiKey, version: int, **fields: object):  # type: ignore[no-untyped-def]
        """The decoded answer; None if the connection was closed instead."""
        self.writer.write(encode_request(api_key, version, 1, "mallory", fields))
        frame = await self.frame()
        return None if frame is None else decode_response(api_key, version, frame)[1]

    async def frame(self) -> bytes | None:
        async with asyncio.timeout(30):
            try:
                return await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(4), "big"))
            except (asyncio.IncompleteReadError, OSError):
                return None

    async def say(self, mechanism: str, *messages: bytes) -> ErrorCode:
        """Where a login ends that consists of these messages."""
        answer = await self.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism)
        for message in messages:
            if answer is None or answer.error_code:
                break
            answer = await self.ask(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=message)
        return ErrorCode.network_exception if answer is None else answer.error_code


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("hostile")
    cert, tls_key = make_certificate(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    document = ECAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"alg": "ES256", "kid": "one"}
    (folder / "jwks.json").write_text(json.dumps({"keys": [document]}))
    (port,) = free_ports(1)
    node = ChronikNode(
        folder / "node",
        listeners=f"CLIENTS://{HOST}:{port}",
        listener_security_protocol_map="CLIENTS:SASL_SSL",
        kafka_tls_cert=cert,
        kafka_tls_key=tls_key,
        sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        sasl_oauthbearer_jwks=folder / "jwks.json",
        sasl_oauthbearer_expected_audience="chronik",
        authorizer=True,
        super_users="User:ANONYMOUS;User:alice",
        env={"CHRONIK_DELEGATION_TOKEN_SECRET_KEY": "what signs delegation tokens"},
    )
    with node:

        async def prepare() -> None:
            async with Cluster(parse_bootstrap(node.bootstrap), ClientOptions()) as cluster:
                await put_user(cluster, "alice", PASSWORD)
                await put_user(cluster, LOGIN.user, LOGIN.password)
                await Admin(cluster).create_topics([NewTopic(name="orders", partitions=1)])

        asyncio.run(prepare())
        yield Target(node, port, cert, key, ssl.create_default_context(cafile=str(cert)))
        node.stop()


@pytest.fixture
def undisturbed(target: Target) -> Iterator[Neighbour]:
    """The attack takes place beside this client, and within the budget."""
    before = target.rss_mib()
    with Neighbour(f"{HOST}:{target.port}", target.cert) as neighbour:
        neighbour.goes_on()
        yield neighbour
        neighbour.goes_on()
    assert not neighbour.failures
    assert neighbour.slowest_s < 5
    assert target.rss_mib() - before < MEMORY_BUDGET_MIB
    print(f"{neighbour.delivered} delivered, the slowest in {neighbour.slowest_s:.2f} s, "
          f"the node grew by {target.rss_mib() - before:.1f} MiB")  # fmt: skip


async def test_every_api_before_a_login(target: Target, undisturbed: Neighbour) -> None:
    for handler in all_handlers():
        if handler.api_key in BEFORE_LOGIN:
            continue
        async with target.connected() as talk:
            head = int(handler.api_key).to_bytes(2, "big") + handler.versions[1].to_bytes(2, "big")
            talk.writer.write(b"\0\0\0\x0a" + head + b"\0\0\0\1\xff\xff")
            assert await talk.frame() is None, handler.api_key.name


async def test_every_api_without_the_right(target: Target, undisturbed: Neighbour) -> None:
    """Many at once, again and again: each is refused, as on a node that has nothing else to do."""
    expected = read_table()

    async def mallory() -> None:
        async with target.connected() as talk:
            message = f"\0{LOGIN.user}\0{LOGIN.password}".encode()
            assert await talk.say("PLAIN", message) == ErrorCode.none
            for case in cases():
                answer = await talk.ask(case.api_key, case.version, **case.fields)
                assert outcome(answer) == expected["nothing", case.name], case.name

    async with asyncio.timeout(120):
        await asyncio.gather(*(mallory() for _ in range(20)))


async def test_frames_that_are_too_large_or_never_end(target: Target, undisturbed: Neighbour) -> None:
    for announced in (2**31 - 1, 200 * 1024, 0, -1):
        async with target.connected() as talk:
            talk.writer.write(announced.to_bytes(4, "big", signed=True) + bytes(100_000))
            assert await talk.frame() is None
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(AT_ONCE):
            talk = await stack.enter_async_context(target.connected())
            talk.writer.write((128 * 1024).to_bytes(4, "big") + bytes(64 * 1024))
        await asyncio.to_thread(undisturbed.goes_on)


async def test_handshakes_that_are_slow_or_stay_half_open(target: Target, undisturbed: Neighbour) -> None:
    """What ends them is in tests/unit/server/test_tls_stream.py; here nobody waits for them."""
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    async with contextlib.AsyncExitStack() as stack:
        talks = [await stack.enter_async_context(target.connected(tls=False)) for _ in range(AT_ONCE)]
        for byte in hello:
            for talk in talks[::2]:
                talk.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        await asyncio.to_thread(undisturbed.goes_on)


async def test_connection_attempts(
    target: Target, undisturbed: Neighbour, request: pytest.FixtureRequest
) -> None:
    """With and without TLS, given up at once, at the handshake and after it."""
    number = request.config.getoption("--hostile-connections")
    gate = asyncio.Semaphore(AT_ONCE)

    async def attempt(kind: int) -> None:
        async with gate:
            with contextlib.suppress(OSError):
                async with target.connected(tls=kind == 2) as talk:
                    if kind == 1:
                        talk.writer.write(b"GET / HTTP/1.1\r\n\r\n")
                        await talk.frame()

    async with asyncio.timeout(240):
        await asyncio.gather(*(attempt(count % 3) for count in range(number)))


async def test_refused_paths_and_topics_that_are_made_up_fill_no_disk(
    target: Target, undisturbed: Neighbour, request: pytest.FixtureRequest
) -> None:
    """By a stranger over HTTP, and by a user without rights over Kafka: what the audit log says of it all is
    within a budget."""
    number = request.config.getoption("--hostile-connections")
    tp = TopicPartition(AUDIT_TOPIC, 0)
    port = int(str(target.node.settings["http_port"]))

    async def refused(first: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, port, local_addr=(HOSTILE_HOST, 0))
        for one in range(first, number, 8):
            path = f"/admin/topics/made-up-{one}-{'x' * 150}/messages"
            writer.write(f"GET {path} HTTP/1.1\r\nhost: {HOST}:{port}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 401 ")
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        writer.close()

    async def bytes_written() -> int:
        async with Cluster(parse_bootstrap(target.node.bootstrap), ClientOptions()) as cluster:
            offsets = await list_offsets(cluster, {tp: LATEST})
            async with Consumer(cluster) as consumer:
                consumer.assign({tp: begin})
                end = {tp: offsets[tp].offset}
                return sum([len(one.record.value or b"") + 20 async for one in consumer.records(end)])

    async with Cluster(parse_bootstrap(target.node.bootstrap), ClientOptions()) as cluster:
        begin = (await list_offsets(cluster, {tp: LATEST}))[tp].offset
    async with asyncio.timeout(240):
        await asyncio.gather(*(refused(first) for first in range(8)))
        async with target.connected() as talk:
            await talk.say("PLAIN", b"\0".join((b"", LOGIN.user.encode(), LOGIN.password.encode())))
            for start in range(0, number, 100):
                names = [f"made-up-{one}-{'y' * 150}" for one in range(start, min(start + 100, number))]
                answer = await talk.ask(
                    ApiKey.DELETE_TOPICS, 5, topic_names=names, timeout=timedelta(seconds=9)
                )
                assert answer is not None
        while True:
            if not await waiting_entries(port):
                break
            await asyncio.sleep(0.05)
    written = await bytes_written()
    assert 0 < written < AUDIT_BUDGET_KIB * 1024
    print(f"the audit log grew by {written / 1024:.0f} KiB")


async def waiting_entries(port: int) -> int:
    """Entries of the audit log that the node has not written yet, sums left out: they are few."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(f"GET /metrics HTTP/1.1\r\nhost: {HOST}:{port}\r\nconnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    return max(0, int(float(text.split("\nchronik_audit_waiting_entries ")[1].split("\n")[0])) - SUMS_MAX)


async def test_scram_is_neither_replayed_nor_weakened(target: Target, undisturbed: Neighbour) -> None:
    kind = MECHANISMS["SCRAM-SHA-256"]
    client = ScramClient(kind, "alice", PASSWORD, "a nonce")
    first = client.first()
    async with target.connected() as talk:
        await talk.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-256")
        challenge = await talk.ask(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=first)
        final = client.final(challenge.auth_bytes)
        assert (await talk.ask(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=final)).error_code == 0
    failed = ErrorCode.sasl_authentication_failed
    attempts = {
        "replayed": ("SCRAM-SHA-256", (first, final), failed),
        "the proof alone": ("SCRAM-SHA-256", (final,), failed),
        "under another mechanism": ("SCRAM-SHA-512", (first, final), failed),
        "a channel binding that was left out": ("SCRAM-SHA-256", (b"y" + first[1:], final), failed),
        "a channel binding that there is not": ("SCRAM-SHA-256", (b"p=tls-unique" + first[1:],), failed),
        "in the clear": ("SCRAM-SHA-256", (b"\0alice\0" + PASSWORD.encode(),), failed),
        "a weaker mechanism": ("SCRAM-SHA-1", (first,), ErrorCode.unsupported_sasl_mechanism),
        "none at all": ("ANONYMOUS", (b"alice",), ErrorCode.unsupported_sasl_mechanism),
    }
    for why, (mechanism, messages, expected) in attempts.items():
        async with target.connected() as talk:
            assert await talk.say(mechanism, *messages) == expected, why


async def test_tokens_that_are_not_believed(target: Target, undisturbed: Neighbour) -> None:
    claims = {"sub": "alice", "aud": "chronik", "exp": 4_000_000_000}
    other = ec.generate_private_key(ec.SECP256R1())

    def token(key: object, algorithm: str = "ES256", **changes: object) -> bytes:
        text = jwt.encode({**claims, **changes}, key, algorithm, headers={"kid": "one"})  # type: ignore[arg-type]
        return oauth.client_message(text)

    async with target.connected() as talk:
        assert await talk.say("OAUTHBEARER", token(target.key)) == ErrorCode.none
    refused = {
        "not signed": token("", "none"),
        "a shared key": token("x" * 64, "HS256"),
        "another key": token(other),
        "expired": token(target.key, exp=1_000_000_000),
        "another audience": token(target.key, aud="other"),
    }
    for why, message in refused.items():
        async with target.connected() as talk:
            assert await talk.say("OAUTHBEARER", message, b"\x01") == ErrorCode.sasl_authentication_failed, (
                why
            )


async def test_an_exchange_is_not_begun_again_for_another_guess(
    target: Target, undisturbed: Neighbour
) -> None:
    """SaslHandshake amid an exchange ends the connection, and counts as a failed login."""
    token = jwt.encode({"sub": "alice", "aud": "chronik"}, "x" * 64, "HS256", headers={"kid": "one"})
    guesses = {
        "SCRAM-SHA-256": ScramClient(MECHANISMS["SCRAM-SHA-256"], "alice", "guess", "a nonce").first(),
        "OAUTHBEARER": oauth.client_message(token),
    }
    for mechanism, message in guesses.items():
        async with target.connected() as talk:
            steps = (
                encode_request(ApiKey.SASL_HANDSHAKE, 1, 1, "mallory", {"mechanism": mechanism}),
                encode_request(ApiKey.SASL_AUTHENTICATE, 2, 2, "mallory", {"auth_bytes": message}),
            )
            talk.writer.write(b"".join(steps) * 500)
            answers = 0
            while await talk.frame() is not None:
                answers += 1
            assert answers <= 3, mechanism


async def test_guessing_at_full_speed(target: Target, undisturbed: Neighbour) -> None:
    """Many connections at once; each failure is answered later than the one before."""
    guesses, seconds = 0, 2.0
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds

    async def guess() -> None:
        nonlocal guesses
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout_at(deadline):
                while True:
                    async with target.connected() as talk:
                        code = await talk.say("PLAIN", b"\0alice\0guess %d" % guesses)
                        assert code in (ErrorCode.sasl_authentication_failed, ErrorCode.network_exception)
                        guesses += 1

    await asyncio.gather(*(guess() for _ in range(32)))
    assert guesses < 32 * 6, "a delay of 0.1 s that doubles, for all connections of an address"
    code = ErrorCode.sasl_authentication_failed
    async with asyncio.timeout(30):
        while code != ErrorCode.none:  # when the failures are answered, the address may try again
            async with target.connected() as talk:
                code = await talk.say("PLAIN", b"\0alice\0" + PASSWORD.encode())


async def test_memory_of_idle_connections(target: Target) -> None:
    """After a large request, which is refused; the first connections warm the allocator."""
    data = [{"name": "orders", "partition_data": [{"index": 0, "records": bytes(1_000_000)}]}]
    async with contextlib.AsyncExitStack() as stack:

        async def one() -> None:
            talk = await stack.enter_async_context(target.connected())
            assert await talk.say("PLAIN", b"\0alice\0" + PASSWORD.encode()) == ErrorCode.none
            answer = await talk.ask(ApiKey.PRODUCE, 9, acks=1, timeout=1000, topic_data=data)
            assert answer.responses[0].partition_responses[0].error_code != ErrorCode.none

        for _ in range(20):
            await one()
        before = target.rss_mib()
        for _ in range(100):
            await one()
        kib = (target.rss_mib() - before) * 1024 / 100
    print(f"{kib:.0f} KiB per idle connection")
    assert kib < IDLE_KIB_MAX
