"""Nodes as processes: started, ended, paused, cut off from each other."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from chronik.config_file import Address, Peer
from chronik.local import ClusterLayout, LocalNode, NodeProcess, wait_ready
from chronik.local.layout import HOST, FirstPorts
from chronik.model import ChronikError, NodeId, Unavailable
from chronik.testing.background import BackgroundLoop
from chronik.testing.network import Network
from chronik.testing.ports import free_ports

READY_SECONDS_MAX: Final = 60.0
WAIT_SECONDS_MAX: Final = 60.0
POLL_SECONDS: Final = 0.02

T = TypeVar("T")


class ClusterFailed(AssertionError):
    """The cluster did not do what it must; the message holds the ends of the nodes' logs where they help."""


class Nodes:
    """`nodes` real nodes with ids 1, 2, ...; started by `with` or `start`, gone at its end.

    `settings` are chronik settings for every node: Cluster(3, wal_profile="ultra"). `folder` keeps everything
    where it is told and leaves it there; by default a temporary directory is removed at the end.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        folder: Path | None = None,
        can_partition: bool = True,
        first_id: NodeId = 1,
        env: Mapping[str, str] | None = None,
        **settings: object,
    ) -> None:
        self._is_temporary = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="chronik-cluster-"))
        self._env = dict(env or {})
        self._background = BackgroundLoop()
        self._network: Network | None = self._background.call(Network) if can_partition else None
        self._inside: dict[NodeId, Peer] = {}
        self._ports: set[int] = set()
        """Ports of all nodes. A node that is down keeps its ports, though nobody listens on them."""
        self._processes: dict[NodeId, NodeProcess] = {}
        self._paused: set[NodeId] = set()
        empty = ClusterLayout.new(self.folder, nodes, FirstPorts(), **settings)
        self.layout = replace(
            empty, peers=tuple(self._new_peer(first_id + peer.id - 1) for peer in empty.peers)
        )
        self.layout.write()
        for peer in self.layout.peers:
            self._take(peer)

    # --- life --------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.log_tails(20), file=sys.stderr)
        self.close()

    def start(self, *node_ids: NodeId, env: Mapping[str, str] | None = None, wait: bool = True) -> float:
        """Start these nodes (by default all that do not run); returns the seconds until they were ready."""
        began = time.monotonic()
        chosen = node_ids or [node_id for node_id in self.nodes if not self.is_running(node_id)]
        for node_id in chosen:
            self._show(node_id)
            # The thread that starts a node must live as long as the node.
            self._background.call(partial(self._processes[node_id].start, env=env))
        if wait:
            self.wait_ready(chosen)
        return time.monotonic() - began

    def close(self) -> None:
        """Kill what runs, remove what is temporary."""
        for process in self._processes.values():
            with contextlib.suppress(ChronikError):
                process.kill()
        if self._network is not None:
            self._background.run(self._network.close())
        self._background.close()
        if self._is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- nodes -------------------------------------------------------------------------------------

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(self._processes)

    @property
    def running(self) -> tuple[NodeId, ...]:
        return tuple(node_id for node_id in self.nodes if self.is_running(node_id))

    @property
    def bootstrap(self) -> str:
        return self.layout.bootstrap

    def bootstrap_of(self, node_id: NodeId) -> str:
        return str(self.layout.node(node_id).peer.kafka)

    def is_running(self, node_id: NodeId) -> bool:
        return self._processes[node_id].is_running

    def pid(self, node_id: NodeId) -> int | None:
        return self._processes[node_id].pid

    def data_dir(self, node_id: NodeId) -> Path:
        return self._processes[node_id].node.data_dir

    def kill(self, *node_ids: NodeId) -> None:
        """SIGKILL, all of them before any is waited for."""
        for node_id in node_ids:
            self._processes[node_id].signal(signal.SIGKILL)
        for node_id in node_ids:
            self._hide(node_id)
            self._processes[node_id].wait(30)
            self._paused.discard(node_id)

    def stop(self, node_id: NodeId, *, timeout_s: float = 30) -> float:
        """SIGTERM and an orderly end; returns the seconds that took."""
        process = self._processes[node_id]
        began = time.monotonic()
        process.stop(timeout_s=timeout_s)
        self._hide(node_id)
        if process.exit_code != 0:
            raise ClusterFailed(
                f"node {node_id} ended with {process.exit_code} instead of in order:\n{process.log_tail(30)}"
            )
        return time.monotonic() - began

    def restart(self, node_id: NodeId, *, env: Mapping[str, str] | None = None) -> float:
        """Stop in order if it runs, start, wait until ready; returns the seconds from start to ready."""
        if self.is_running(node_id):
            self.stop(node_id)
        return self.start(node_id, env=env)

    def pause(self, node_id: NodeId) -> None:
        """SIGSTOP: the node lives, but does nothing until `resume`."""
        self._processes[node_id].signal(signal.SIGSTOP)
        self._paused.add(node_id)

    def resume(self, node_id: NodeId) -> None:
        self._processes[node_id].signal(signal.SIGCONT)
        self._paused.discard(node_id)

    def disguised(self, node_id: NodeId, config: Path, folder: Path) -> NodeProcess:
        """A process with the id and the ports of a node, but a configuration and a folder of its own."""
        self._show(node_id)
        node = replace(self._processes[node_id].node, config=config, folder=folder)
        return NodeProcess(node, env=self._env, is_leashed=True)

    def partition(self, ones: Iterable[NodeId], others: Iterable[NodeId], *, one_way: bool = False) -> None:
        """Let nothing pass between two sets of nodes; clients still reach all of them."""
        network = self._network
        if network is None:
            raise ClusterFailed("this cluster was made with can_partition=False")
        self._background.call(lambda: network.cut(ones, others, one_way=one_way))

    def isolate(self, node_id: NodeId) -> None:
        """Cut one node off from all others."""
        self.partition([node_id], [other for other in self.nodes if other != node_id])

    def heal(self) -> None:
        if self._network is not None:
            self._background.call(self._network.heal)

    # --- waiting -----------------------------------------------------------------------------------

    def wait_ready(
        self, node_ids: Sequence[NodeId] | None = None, *, timeout_s: float = READY_SECONDS_MAX
    ) -> None:
        """Wait until each of these nodes names all that run, and a controller."""
        asked = tuple(node_ids) if node_ids is not None else self._answering()
        peers = [self.layout.node(node_id).peer for node_id in asked]

        def check() -> None:
            for node_id in asked:
                if not self.is_running(node_id):
                    tail = self._processes[node_id].log_tail(30)
                    raise ClusterFailed(f"node {node_id} ended while it was waited for:\n{tail}")

        try:
            self._background.run(
                wait_ready(peers, timeout_s=timeout_s, expected=self._answering(), check=check)
            )
        except Unavailable as error:
            raise ClusterFailed(f"{error}\n{self.log_tails(15)}") from None

    def wait_for(self, fact: Callable[[], Any], what: str, timeout_s: float = WAIT_SECONDS_MAX) -> Any:
        """Ask until `fact()` is true; returns what it gave. Nodes that do not answer count as not yet."""
        deadline = time.monotonic() + timeout_s
        last: object = None
        while True:
            try:
                last = fact()
            except (ChronikError, LookupError) as error:
                last = error
            if last and not isinstance(last, Exception):
                return last
            if time.monotonic() > deadline:
                raise ClusterFailed(f"not within {timeout_s:g} s: {what} ({last!r})\n{self.log_tails(10)}")
            time.sleep(POLL_SECONDS)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the cluster's own loop, for tests that have none."""
        return self._background.run(work)

    def log(self, node_id: NodeId) -> str:
        """All that a node has said."""
        return self._processes[node_id].node.log_file.read_text(errors="replace")

    def log_tails(self, lines: int = 10) -> str:
        return "\n".join(
            f"--- node {node_id}: {process.node.log_file}\n{process.log_tail(lines)}"
            for node_id, process in self._processes.items()
        )

    # --- inside --------------------------------------------------------------------------------

    def _new_peer(self, node_id: NodeId) -> Peer:
        """Addresses of a node: what others are told, and behind the proxies where it really listens."""
        kafka, wal, raft, http = (Address(HOST, port) for port in self._new_ports(4))
        inside = Peer(id=node_id, kafka=kafka, wal=wal, raft=raft, http=http)
        self._inside[node_id] = inside
        if self._network is None:
            return inside
        outside_wal, outside_raft = self._new_ports(2)
        for outside, address in ((outside_wal, wal), (outside_raft, raft)):
            self._background.run(self._network.expose(node_id, outside, address.port or 0))
        return replace(inside, wal=Address(HOST, outside_wal), raft=Address(HOST, outside_raft))

    def _new_ports(self, count: int) -> list[int]:
        found = free_ports(count, given=self._ports)
        self._ports.update(found)
        return found

    def _take(self, peer: Peer) -> None:
        inside = self._inside[peer.id]
        node: LocalNode = replace(
            self.layout.node(peer.id),
            flags=("--wal-port", str(inside.wal.port), "--raft-port", str(inside.raft.port)),
        )
        self._processes[peer.id] = NodeProcess(node, env=self._env, is_leashed=True)

    def _show(self, node_id: NodeId) -> None:
        if self._network is not None:
            self._background.call(partial(self._network.show, node_id))

    def _hide(self, node_id: NodeId) -> None:
        if self._network is not None:
            self._background.call(partial(self._network.hide, node_id))

    def _answering(self) -> tuple[NodeId, ...]:
        return tuple(node_id for node_id in self.running if node_id not in self._paused)

    def _address(self, node_id: NodeId) -> Address:
        return self.layout.node(node_id).peer.kafka
