"""The cluster's level: which formats, on disk and between nodes, its nodes may write.

A release reads every level from `LEVEL_FIRST` to `LEVEL_LAST` and writes what the cluster's level says. So
nodes of two releases work together, and a node can go back to the release before, until a person finalizes
the upgrade: the level goes up, and releases that do not know it are refused from then on. Clients see the
level as the feature `FEATURE` of ApiVersions.

A format that changes gets a new level here; its writer asks `ClusterState.level` which form to write.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from chronik.model import TooNew

__all__ = [
    "COMMAND_LEVELS",
    "FEATURE",
    "LEVELS",
    "LEVEL_CLIENT_WARRANT",
    "LEVEL_FIRST",
    "LEVEL_HTTP_USER",
    "LEVEL_LAST",
    "LEVEL_NODE_KEY",
    "LEVEL_REASSIGN_EPOCH",
    "OWN_LEVELS",
    "UNREPORTED_LEVELS",
    "LevelRange",
    "refuse_level",
]

FEATURE: Final = "chronik.version"

LEVELS: Final = {
    1: ("0.1", "what 0.1 reads and writes"),
    2: (
        "0.2",
        "the metadata log says at which level the cluster is (`set_level`) and who should vote "
        "(`set_voter`), and has named API keys (`put_api_key`), remote logs (`set_remote_log`) and moves "
        "that give way to others (`reassign`); HTTP ports log in to brokers as themselves, nodes and the "
        "clients of nodes prove their own keys there",
    ),
}
"""For each level the first release that knows it, and what came with it."""

COMMAND_LEVELS: Final = {"set_voter": 2, "put_api_key": 2, "remove_api_key": 2, "set_remote_log": 2}
"""Lowest level of each command: a node stops at a command that it does not know."""
LEVEL_HTTP_USER: Final = 2
"""From this level on every node knows the user that HTTP ports log in as."""
LEVEL_NODE_KEY: Final = 2
"""From this level on every node proves its own key when it logs in, for the certificate that it was shown."""
LEVEL_CLIENT_WARRANT: Final = 2
"""From this level on HTTP ports and query processes prove whose they are (`security/warrants.py`)."""
LEVEL_REASSIGN_EPOCH: Final = 2
"""From this level on every node refuses a `Reassign` that names another partition epoch than the present one.
"""
LEVEL_FIRST: Final = min(LEVELS)
"""The first level, and that of a cluster whose metadata log records none."""
LEVEL_LAST: Final = max(LEVELS)


class LevelRange(NamedTuple):
    """The levels that a release can work at."""

    low: int
    high: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.low <= level <= self.high


OWN_LEVELS: Final = LevelRange(LEVEL_FIRST, LEVEL_LAST)
UNREPORTED_LEVELS: Final = LevelRange(1, 1)
"""The levels of a node whose status names none: release 0.1."""


def refuse_level(level: int) -> None:
    if level not in OWN_LEVELS:
        raise TooNew(
            f"the cluster is at level {level} and this release knows levels {LEVEL_FIRST} to {LEVEL_LAST}: "
            "start this node with the release that the others run"
        )
