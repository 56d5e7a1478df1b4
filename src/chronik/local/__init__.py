"""A cluster on this machine: its files, its processes, whether it is ready.

`chronik cluster` and `chronik.testing` share it. A folder holds one `cluster.toml` for all nodes and a
`nodeN` directory for each (data, log, pid file); what runs is read from the folder, so any later command can
find what an earlier one started. Nodes are ordinary `chronik start` processes.

Not its job: anything inside a node. It talks to nodes as a client does.
"""

from __future__ import annotations

from chronik.local.layout import ClusterLayout, FirstPorts, LayoutError, LocalNode
from chronik.local.probe import ProbedNode, look, wait_ready
from chronik.local.process import NodeProcess, ProcessFailed

__all__ = [
    "ClusterLayout",
    "FirstPorts",
    "LayoutError",
    "LocalNode",
    "NodeProcess",
    "ProbedNode",
    "ProcessFailed",
    "look",
    "wait_ready",
]
