"""What each node of a local cluster says about the cluster, asked over the Kafka port and HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chronik.client import ClientOptions, Connection
from chronik.client.apis import METADATA
from chronik.client.options import BrokerAddress as ClientAddress
from chronik.config_file import Address, Peer
from chronik.model import NO_LEADER, ChronikError, NodeId, Unavailable

ASK_SECONDS: Final = 2.0
POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedNode:
    """The cluster as one node sees it; None and empty where it does not answer."""

    node_id: NodeId
    answers: bool = False
    brokers: tuple[NodeId, ...] = ()
    controller_id: NodeId = NO_LEADER
    topics: tuple[Any, ...] = ()
    """Topics as in a Metadata response."""
    raft: Mapping[str, Any] | None = None
    """Status as in GET /admin/raft-status."""

    def is_ready(self, expected: Iterable[NodeId]) -> bool:
        return set(expected) <= set(self.brokers) and self.controller_id in self.brokers


async def ask_metadata(address: Address, topics: Sequence[str] | None = ()) -> Any:
    """One Metadata request to one node; `()` asks for the nodes alone, None for every topic."""
    options = ClientOptions(
        client_id="chronik-cluster",
        connect_timeout_ms=int(ASK_SECONDS * 1000),
        request_timeout_ms=int(ASK_SECONDS * 1000),
    )
    connection = await Connection.open(ClientAddress(address.host, address.port or 0), options)
    try:
        return await connection.request(
            METADATA,
            {
                "topics": None if topics is None else [{"name": name, "topic_id": None} for name in topics],
                "allow_auto_topic_creation": False,
            },
        )
    finally:
        connection.close()


async def look(
    peers: Sequence[Peer], *, details: bool = False, headers: Mapping[str, str] | None = None
) -> list[ProbedNode]:
    """Every node's view, asked at the same time; with `details`, topics and how the metadata log stands."""
    return list(await asyncio.gather(*(_view(peer, details, headers) for peer in peers)))


async def _view(peer: Peer, details: bool, headers: Mapping[str, str] | None) -> ProbedNode:
    raft = await _raft_status(peer, headers) if details else None
    try:
        found = await ask_metadata(peer.kafka, None if details else ())
    except ChronikError:
        return ProbedNode(node_id=peer.id, raft=raft)
    return ProbedNode(
        node_id=peer.id,
        answers=True,
        brokers=tuple(sorted(broker.node_id for broker in found.brokers)),
        controller_id=found.controller_id,
        topics=tuple(found.topics),
        raft=raft,
    )


async def _raft_status(peer: Peer, headers: Mapping[str, str] | None) -> Mapping[str, Any] | None:
    try:
        found = await ask_http(peer, "GET", "/admin/raft-status", headers=headers)
    except ChronikError:
        return None
    return found if isinstance(found, dict) else None


async def wait_ready(
    peers: Sequence[Peer],
    *,
    timeout_s: float,
    expected: Iterable[NodeId] | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Return when every node names every expected node and a controller; `check` may raise before that."""
    wanted = tuple(expected) if expected is not None else tuple(peer.id for peer in peers)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        check()
        views = await look(peers)
        waiting = [view for view in views if not view.is_ready(wanted)]
        if not waiting:
            return
        if loop.time() > deadline:
            raise Unavailable(f"not ready after {timeout_s:g} s: {'; '.join(map(_missing, waiting))}")
        await asyncio.sleep(POLL_SECONDS)


def _missing(view: ProbedNode) -> str:
    if not view.answers:
        return f"node {view.node_id} does not answer"
    controller = "no controller" if view.controller_id == NO_LEADER else f"controller {view.controller_id}"
    return f"node {view.node_id} knows nodes {', '.join(map(str, view.brokers)) or '(none)'} and {controller}"


async def ask_http(
    peer: Peer,
    method: str,
    path: str,
    body: object = None,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = ASK_SECONDS,
) -> Any:
    """One call of the admin API; raises Unavailable with the sentence the node gave."""
    if peer.http is None:
        raise Unavailable(f"node {peer.id} has no HTTP address")
    return await asyncio.to_thread(_call, peer.http, method, path, body, dict(headers or {}), timeout_s)


def _call(
    address: Address, method: str, path: str, body: object, headers: dict[str, str], timeout_s: float
) -> Any:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)
    data = None if body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, data, {"content-type": "application/json", **headers})
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"http://{address}{path}: {error or type(error).__name__}") from None
    finally:
        connection.close()
    try:
        answer = json.loads(text) if text else None
    except ValueError:
        answer = None
    if response.status >= 400:
        raise Unavailable(_reason(answer) or f"http://{address}{path} answered {response.status}")
    return answer


def _reason(answer: object) -> str | None:
    """The sentence in an error answer, however deep it lies."""
    while isinstance(answer, dict):
        answer = answer.get("message") or answer.get("detail") or answer.get("error")
    return answer.rstrip(".") if isinstance(answer, str) else None
