"""How large clients may make the cluster's state: one budget in bytes, kept by whoever submits. Pure.

Every node holds the whole state, and a node that fell behind gets it as one message of at most
`FRAME_BYTES_MAX` bytes. A state that does not fit there would keep that node out for good. So a command that
makes the state grow is refused when there is no room; one that does not is never refused, least of all a
deletion.

Nodes look at what they have applied and at what they submit themselves. What all of them have under way at
once can go over the budget by what the Raft leader lets wait (`RaftConfig.max_uncommitted_bytes`); the
highest value of the setting leaves room for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chronik.metadata.commands import Batch, Command
from chronik.metadata.sizes import growth
from chronik.metadata.state import ClusterState
from chronik.metadata.values import Outcome, Refused
from chronik.model import METADATA_BYTES_MAX, ErrorCode, RequestError

__all__ = ["ENTRY_BYTES_MAX", "AdmittedCommand", "MetadataBudget"]

ENTRY_BYTES_MAX: Final = 8 * 1024 * 1024
"""The longest entry of the metadata log that makes the state grow. It is one message to each follower."""


@dataclass(frozen=True, slots=True)
class AdmittedCommand:
    """What is left of a command after the parts for which there is no room."""

    command: Command | None
    """None if nothing is left."""
    growth: int
    """Never below 0: what a command frees is room only once it is applied."""
    refused: dict[int, Refused]
    """The refused commands, by their place in the batch."""

    def whole(self, outcome: Outcome) -> Outcome:
        """The outcome with the refused parts in their places."""
        if not self.refused:
            return outcome
        rest = iter(outcome.parts)
        count = len(self.refused) + len(outcome.parts)
        parts = tuple(
            Outcome(index=outcome.index, refused=self.refused[place]) if place in self.refused else next(rest)
            for place in range(count)
        )
        return Outcome(index=outcome.index, events=outcome.events, parts=parts)


class MetadataBudget:
    """How large a node lets the metadata grow. Every node of a cluster should have the same budget."""

    def __init__(self, bytes_max: int = METADATA_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.under_way = 0
        """Bytes by which the state will grow once the waiting submissions of this node are applied."""
        self.refused = 0
        """How many commands were refused."""

    def admit(self, state: ClusterState, command: Command) -> AdmittedCommand:
        """Raises RequestError if there is no room; of a Batch only those parts are left out."""
        if not isinstance(command, Batch):
            added = growth(state, command)
            if self._is_too_much(state, added):
                refused = self._refusal(state)
                raise RequestError(refused.code, refused.message)
            return AdmittedCommand(command, max(0, added), {})
        total, refused_parts = 0, {}
        for place, part in enumerate(command.commands):
            added = growth(state, part)
            if self._is_too_much(state, added, total):
                refused_parts[place] = self._refusal(state)
            else:
                total += max(0, added)
        if not refused_parts:
            return AdmittedCommand(command, total, {})
        left = tuple(part for place, part in enumerate(command.commands) if place not in refused_parts)
        return AdmittedCommand(Batch(commands=left) if left else None, total, refused_parts)

    def check_entry(self, admission: AdmittedCommand, size_bytes: int) -> None:
        """RequestError if an entry that makes the state grow is too long."""
        if admission.growth > 0 and size_bytes > ENTRY_BYTES_MAX:
            self.refused += 1
            raise RequestError(
                ErrorCode.policy_violation,
                f"The change takes {size_bytes} bytes, and one entry of the metadata log takes at most "
                f"{ENTRY_BYTES_MAX}: make it in smaller requests.",
            )

    def _is_too_much(self, state: ClusterState, added: int, before: int = 0) -> bool:
        return added > 0 and state.size_bytes + self.under_way + before + added > self.bytes_max

    def _refusal(self, state: ClusterState) -> Refused:
        self.refused += 1
        return Refused(
            ErrorCode.policy_violation,
            f"The cluster's metadata takes {state.size_bytes} bytes of at most {self.bytes_max}: delete "
            "something, or raise metadata_bytes_max on every node.",
        )
