"""The classic group: every refusal by name, and random crowds that must agree in the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from chronik.groups.classic_group import ClassicGroup, State
from chronik.groups.classic_messages import (
    Answer,
    ClassicGroupConfig,
    Effect,
    Join,
    JoinResult,
    Leave,
    Persist,
    Protocols,
    Sync,
    SyncResult,
)
from chronik.model import ErrorCode, RequestError

SESSION_MS = 10_000
REBALANCE_MS = 60_000
RANGE: Protocols = (("range", b"topics"),)


def config(**changes: int) -> ClassicGroupConfig:
    return ClassicGroupConfig(**{"initial_rebalance_delay_ms": 0, **changes})


class Driver:
    """Plays the coordinator: counts answers, writes records at once (unless told to hold them)."""

    def __init__(self, **changes: int) -> None:
        self.group = ClassicGroup("g", config(**changes), now_ms=0)
        self.now_ms = 0
        self.answers: dict[object, JoinResult | SyncResult] = {}
        self.waiting: set[object] = set()
        self.held: list[Persist] = []
        self.hold = False
        self.saved = self.group.saved()
        self._tokens = 0
        self._ids = 0

    def token(self) -> int:
        self._tokens += 1
        self.waiting.add(self._tokens)
        return self._tokens

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                assert effect.token in self.waiting, "answered twice or never asked"
                self.waiting.remove(effect.token)
                self.answers[effect.token] = effect.result
            elif self.hold:
                self.held.append(effect)
            else:
                self.write(effect)

    def write(self, persist: Persist, error: ErrorCode = ErrorCode.none) -> None:
        if error is ErrorCode.none:
            self.saved = persist.saved
        self.take(self.group.persisted(persist.number, now_ms=self.now_ms, error=error))

    def send_join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: Protocols = RANGE,
        known: bool = False,
        **changes: object,
    ) -> int:
        token = self.token()
        self._ids += 1
        values: dict[str, object] = {
            "member_id": member_id,
            "instance_id": instance_id,
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": protocols,
            "new_member_id": f"m{self._ids}",
            "requires_known_member_id": known,
            **changes,
        }
        self.take(self.group.join(Join(**values), token, now_ms=self.now_ms))  # type: ignore[arg-type]
        return token

    def send_sync(
        self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None, **changes: object
    ) -> int:
        token = self.token()
        values: dict[str, object] = {
            "member_id": member_id,
            "instance_id": None,
            "generation": generation,
            "protocol_type": None,
            "protocol": None,
            "assignments": tuple((assignments or {}).items()),
            **changes,
        }
        self.take(self.group.sync(Sync(**values), token, now_ms=self.now_ms))  # type: ignore[arg-type]
        return token

    def joined(self, token: int) -> JoinResult:
        result = self.answers[token]
        assert isinstance(result, JoinResult)
        return result

    def synced(self, token: int) -> SyncResult:
        result = self.answers[token]
        assert isinstance(result, SyncResult)
        return result

    def advance(self, ms: int) -> None:
        """Let time pass, stopping at every deadline as the coordinator's timer does."""
        end_ms = self.now_ms + ms
        while (deadline_ms := self.group.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.take(self.group.advance(now_ms=self.now_ms))
        self.now_ms = end_ms

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        try:
            self.group.heartbeat(member_id, instance_id, generation, now_ms=self.now_ms)
        except RequestError as error:
            return error.code
        return ErrorCode.none

    def stable_pair(self) -> tuple[str, str]:
        """Two members, stable; the first leads."""
        first = self.joined(self.send_join())
        token = self.send_join()
        again = self.send_join(first.member_id)
        second = self.joined(token)
        assert self.joined(again).generation == second.generation == self.group.generation
        follower = self.send_sync(second.member_id, second.generation)
        self.send_sync(first.member_id, second.generation, {first.member_id: b"p0", second.member_id: b"p1"})
        assert self.synced(follower).assignment == b"p1"
        assert self.group.state is State.STABLE
        return first.member_id, second.member_id


def test_two_members_share_the_work() -> None:
    driver = Driver()
    leader, follower = driver.stable_pair()
    assert driver.group.generation == 2
    assert {m.member_id: m.assignment for m in driver.saved.members} == {leader: b"p0", follower: b"p1"}
    assert driver.heartbeat(leader, 2) is ErrorCode.none


def test_only_the_leader_is_told_who_the_members_are() -> None:
    driver = Driver()
    first = driver.send_join()
    member_id = driver.joined(first).member_id
    second = driver.send_join()
    again = driver.send_join(member_id)
    assert len(driver.joined(again).members) == 2
    assert driver.joined(second).members == ()
    assert driver.joined(second).leader == member_id


def test_member_id_required() -> None:
    driver = Driver()
    result = driver.joined(driver.send_join(known=True))
    assert result.error is ErrorCode.member_id_required
    assert driver.joined(driver.send_join(result.member_id, known=True)).error is ErrorCode.none


def test_an_id_that_was_given_but_never_used_expires() -> None:
    driver = Driver()
    result = driver.joined(driver.send_join(known=True))
    driver.advance(SESSION_MS)
    again = driver.joined(driver.send_join(result.member_id, known=True))
    assert again.error is ErrorCode.unknown_member_id


def test_the_first_rebalance_waits_for_more_members() -> None:
    driver = Driver(initial_rebalance_delay_ms=3_000)
    first = driver.send_join()
    driver.advance(2_000)
    second = driver.send_join()
    driver.advance(1_500)
    assert driver.waiting == {first, second}  # drawn out, since somebody joined meanwhile
    driver.advance(3_000)
    assert driver.joined(first).generation == driver.joined(second).generation == 1


def test_unknown_member_id_everywhere() -> None:
    driver = Driver()
    driver.stable_pair()
    assert driver.joined(driver.send_join("nobody")).error is ErrorCode.unknown_member_id
    assert driver.synced(driver.send_sync("nobody", 2)).error is ErrorCode.unknown_member_id
    assert driver.heartbeat("nobody", 2) is ErrorCode.unknown_member_id
    codes, _ = driver.group.leave([Leave(member_id="nobody", instance_id=None)], now_ms=0)
    assert codes == [ErrorCode.unknown_member_id]


def test_illegal_generation() -> None:
    driver = Driver()
    leader, _ = driver.stable_pair()
    assert driver.heartbeat(leader, 1) is ErrorCode.illegal_generation
    assert driver.synced(driver.send_sync(leader, 7)).error is ErrorCode.illegal_generation
    with pytest.raises(RequestError) as caught:
        driver.group.check_commit(leader, None, 1, now_ms=0)
    assert caught.value.code is ErrorCode.illegal_generation


def test_rebalance_in_progress_calls_everybody_back() -> None:
    driver = Driver()
    leader, follower = driver.stable_pair()
    third = driver.send_join()
    assert driver.heartbeat(leader, 2) is ErrorCode.rebalance_in_progress
    assert driver.synced(driver.send_sync(leader, 2)).error is ErrorCode.rebalance_in_progress
    driver.group.check_commit(leader, None, 2, now_ms=0)  # commits still count while partitions are given up
    driver.send_join(leader)
    driver.send_join(follower)
    assert driver.joined(third).generation == 3
    with pytest.raises(RequestError) as caught:
        driver.group.check_commit(leader, None, 3, now_ms=0)
    assert caught.value.code is ErrorCode.rebalance_in_progress


def test_a_join_during_sync_sends_the_waiting_back() -> None:
    driver = Driver()
    first = driver.joined(driver.send_join()).member_id
    second = driver.send_join()
    driver.send_join(first)
    waiting = driver.send_sync(driver.joined(second).member_id, 2)
    driver.send_join()
    assert driver.synced(waiting).error is ErrorCode.rebalance_in_progress


@pytest.mark.parametrize(
    "changes",
    [
        {"protocols": ()},
        {"protocol_type": ""},
        {"protocol_type": "connect"},
        {"protocols": (("roundrobin", b""),)},
    ],
)
def test_inconsistent_group_protocol(changes: dict[str, object]) -> None:
    driver = Driver()
    driver.stable_pair()
    assert (
        driver.joined(driver.send_join(**changes)).error  # type: ignore[arg-type]
        is ErrorCode.inconsistent_group_protocol
    )


def test_sync_with_another_protocol_is_inconsistent() -> None:
    driver = Driver()
    leader, _ = driver.stable_pair()
    token = driver.send_sync(leader, 2, protocol="roundrobin")
    assert driver.synced(token).error is ErrorCode.inconsistent_group_protocol


def test_the_protocol_that_all_share_and_most_prefer_wins() -> None:
    driver = Driver(initial_rebalance_delay_ms=100)
    tokens = [
        driver.send_join(protocols=(("a", b""), ("b", b""), ("c", b""))),
        driver.send_join(protocols=(("b", b""), ("c", b""))),
        driver.send_join(protocols=(("c", b""), ("b", b""))),
    ]
    driver.advance(1_000)
    assert {driver.joined(token).protocol for token in tokens} == {"b"}


def test_group_max_size_reached() -> None:
    driver = Driver(group_size_max=2)
    leader, _ = driver.stable_pair()
    assert driver.joined(driver.send_join()).error is ErrorCode.group_max_size_reached
    driver.send_join(leader)  # who is in stays in


@pytest.mark.parametrize("session_timeout_ms", [1, 10_000_000])
def test_invalid_session_timeout(session_timeout_ms: int) -> None:
    driver = Driver()
    token = driver.send_join(session_timeout_ms=session_timeout_ms)
    assert driver.joined(token).error is ErrorCode.invalid_session_timeout


def test_a_silent_member_expires_and_the_rest_rebalances() -> None:
    driver = Driver()
    leader, follower = driver.stable_pair()
    driver.advance(SESSION_MS - 1)
    assert driver.heartbeat(leader, 2) is ErrorCode.none
    driver.advance(1)
    assert driver.heartbeat(leader, 2) is ErrorCode.rebalance_in_progress
    assert driver.joined(driver.send_join(leader)).generation == 3
    assert follower not in driver.group.members


def test_a_rebalance_ends_without_those_who_do_not_come_back() -> None:
    driver = Driver()
    leader, follower = driver.stable_pair()
    third = driver.send_join()
    for _ in range(7):
        driver.heartbeat(leader, 2)
        driver.heartbeat(follower, 2)
        driver.advance(9_000)
    result = driver.joined(third)
    assert (result.generation, result.leader) == (3, result.member_id)
    assert set(driver.group.members) == {result.member_id}


def test_who_never_syncs_is_removed() -> None:
    driver = Driver()
    first = driver.joined(driver.send_join())
    for _ in range(8):
        driver.heartbeat(first.member_id, 1)
        driver.advance(9_000)
    assert driver.group.state is State.EMPTY


def test_the_last_to_leave_empties_the_group() -> None:
    driver = Driver()
    members = driver.stable_pair()
    leaves = [Leave(member_id=member_id, instance_id=None) for member_id in members]
    codes, effects = driver.group.leave(leaves, now_ms=0)
    driver.take(effects)
    assert codes == [ErrorCode.none, ErrorCode.none]
    assert driver.group.state is State.EMPTY
    assert driver.saved.members == ()
    assert driver.saved.generation == 3


def test_offsets_of_an_empty_group_may_be_committed_by_anybody() -> None:
    driver = Driver()
    driver.group.check_commit("", None, -1, now_ms=0)
    driver.stable_pair()
    with pytest.raises(RequestError) as caught:
        driver.group.check_commit("", None, -1, now_ms=0)
    assert caught.value.code is ErrorCode.unknown_member_id


def stable_static(driver: Driver) -> tuple[str, str]:
    first = driver.joined(driver.send_join(instance_id="one")).member_id
    token = driver.send_join(instance_id="two")
    driver.send_join(first, instance_id="one")
    second = driver.joined(token).member_id
    driver.send_sync(second, 2, instance_id="two")
    driver.send_sync(first, 2, {first: b"p0", second: b"p1"}, instance_id="one")
    return first, second


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    driver = Driver()
    _, second = stable_static(driver)
    result = driver.joined(driver.send_join(instance_id="two"))
    assert (result.error, result.generation) == (ErrorCode.none, 2)
    assert driver.synced(driver.send_sync(result.member_id, 2, instance_id="two")).assignment == b"p1"
    assert driver.group.state is State.STABLE
    assert driver.heartbeat(second, 2, "two") is ErrorCode.fenced_instance_id
    assert driver.synced(driver.send_sync(second, 2, instance_id="two")).error is ErrorCode.fenced_instance_id
    assert driver.joined(driver.send_join(second, instance_id="two")).error is ErrorCode.fenced_instance_id
    codes, _ = driver.group.leave([Leave(member_id=second, instance_id="two")], now_ms=0)
    assert codes == [ErrorCode.fenced_instance_id]


@pytest.mark.parametrize("skips", [True, False])
def test_a_static_leader_comes_back_and_need_not_assign(skips: bool) -> None:
    driver = Driver()
    first, _ = stable_static(driver)
    result = driver.joined(driver.send_join(instance_id="one", supports_skipping_assignment=skips))
    assert result.skip_assignment is skips
    assert (result.leader == result.member_id) is skips
    assert result.leader == (result.member_id if skips else first)


def test_a_static_member_with_a_new_subscription_rebalances() -> None:
    driver = Driver()
    stable_static(driver)
    driver.send_join(instance_id="two", protocols=(("range", b"other topics"),))
    assert driver.group.state is State.PREPARING


def test_a_static_member_that_is_away_keeps_its_place_through_a_rebalance() -> None:
    driver = Driver()
    first, second = stable_static(driver)
    driver.send_join(first, instance_id="one", protocols=(("range", b"new"),), session_timeout_ms=100_000)
    driver.group.members[second].deadline_ms = 10**9
    driver.advance(REBALANCE_MS)
    assert driver.group.state is State.COMPLETING
    assert second in driver.group.members


def test_leave_by_instance_id_alone() -> None:
    driver = Driver()
    _, second = stable_static(driver)
    codes, effects = driver.group.leave([Leave(member_id="", instance_id="two")], now_ms=0)
    driver.take(effects)
    assert codes == [ErrorCode.none]
    assert second not in driver.group.members
    codes, _ = driver.group.leave([Leave(member_id="", instance_id="two")], now_ms=0)
    assert codes == [ErrorCode.unknown_member_id]


def test_nobody_gets_an_assignment_that_is_not_durable() -> None:
    driver = Driver()
    leader, follower = driver.stable_pair()
    third = driver.send_join()
    driver.send_join(leader)
    driver.send_join(follower)
    driver.hold = True
    token = driver.send_sync(leader, 3, {leader: b"x"})
    other = driver.send_sync(driver.joined(third).member_id, 3)
    assert driver.waiting >= {token, other}
    driver.write(driver.held.pop(), ErrorCode.coordinator_not_available)
    assert driver.synced(token).error is ErrorCode.coordinator_not_available
    assert driver.group.state is State.PREPARING


def test_a_dead_group_answers_everybody() -> None:
    driver = Driver(initial_rebalance_delay_ms=1_000)
    waiting = driver.send_join()
    driver.take(driver.group.close(ErrorCode.not_coordinator, now_ms=0))
    assert driver.joined(waiting).error is ErrorCode.not_coordinator
    assert driver.joined(driver.send_join()).error is ErrorCode.coordinator_not_available


def test_a_restored_group_goes_on() -> None:
    driver = Driver()
    leader, follower = driver.stable_pair()
    driver.group = ClassicGroup.restore("g", driver.saved, config(), now_ms=driver.now_ms)
    assert driver.heartbeat(follower, 2) is ErrorCode.none
    assert driver.synced(driver.send_sync(follower, 2)).assignment == b"p1"
    driver.advance(SESSION_MS + REBALANCE_MS)
    assert driver.group.state is State.EMPTY
    assert leader not in driver.group.members


@dataclass
class Client:
    """A well-behaved consumer: it follows what it is told. `doing` is the request it waits for."""

    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1
    doing: int | None = None
    phase: str = "join"
    assignment: frozenset[int] = frozenset()
    joined: JoinResult | None = field(default=None)


PARTITIONS = range(6)


class Crowd(RuleBasedStateMachine):
    """Clients come, go, crash and are slow. No partition twice in a generation; calm brings agreement."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(initial_rebalance_delay_ms=500)
        self.clients: list[Client] = []
        self.owned: dict[tuple[int, int], str] = {}
        self.planned: dict[tuple[int, str], bytes] = {}
        self.generation = 0

    def step(self, client: Client) -> None:
        """The next thing that this client does, if it is not waiting."""
        driver = self.driver
        if client.doing is not None:
            result = driver.answers.pop(client.doing, None)
            if result is None:
                return
            client.doing = None
            if isinstance(result, JoinResult):
                self.on_join(client, result)
            else:
                self.on_sync(client, result)
        elif client.phase == "join":
            client.doing = driver.send_join(client.member_id, instance_id=client.instance_id, known=True)
        elif client.phase == "sync" and client.joined is not None:
            assignments = {}
            joined = client.joined
            members = () if joined.skip_assignment else joined.members
            for index, member in enumerate(members):
                mine = [p for p in PARTITIONS if p % len(joined.members) == index]
                assignments[member.member_id] = bytes(mine)
                self.planned[joined.generation, member.member_id] = bytes(mine)
            client.doing = driver.send_sync(
                client.member_id, client.generation, assignments, instance_id=client.instance_id
            )
        else:
            code = driver.heartbeat(client.member_id, client.generation, client.instance_id)
            self.on_error(client, code)

    def on_join(self, client: Client, result: JoinResult) -> None:
        if result.error is ErrorCode.none:
            client.member_id, client.generation = result.member_id, result.generation
            client.joined, client.phase = result, "sync"
        elif result.error is ErrorCode.member_id_required:
            client.member_id = result.member_id
        else:
            self.on_error(client, result.error)

    def on_sync(self, client: Client, result: SyncResult) -> None:
        if result.error is not ErrorCode.none:
            self.on_error(client, result.error)
            return
        client.phase = "heartbeat"
        planned = self.planned.get((client.generation, client.member_id))
        assert planned in (None, result.assignment), "not what the leader of this generation said"
        client.assignment = frozenset(result.assignment)
        name = client.instance_id or client.member_id
        for partition in client.assignment:
            owner = self.owned.setdefault((client.generation, partition), name)
            assert owner == name, f"partition {partition} twice in generation {client.generation}"

    def on_error(self, client: Client, code: ErrorCode) -> None:
        if code is ErrorCode.none:
            return
        client.phase, client.assignment = "join", frozenset()
        if code in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id):
            client.member_id = ""

    @rule(static=st.booleans())
    def arrive(self, static: bool) -> None:
        if len(self.clients) < 5:
            used = {client.instance_id for client in self.clients}
            free = [name for name in ("s1", "s2", "s3", "s4", "s5") if name not in used]
            self.clients.append(Client(instance_id=free[0] if static else None))

    @rule(index=st.integers(0, 4), steps=st.integers(1, 3))
    def act(self, index: int, steps: int) -> None:
        for _ in range(steps):
            if index < len(self.clients):
                self.step(self.clients[index])

    @rule()
    def everybody(self) -> None:
        for client in self.clients:
            self.step(client)

    @rule(index=st.integers(0, 4), politely=st.booleans())
    def go(self, index: int, politely: bool) -> None:
        if index < len(self.clients):
            client = self.clients.pop(index)
            if politely and client.member_id:
                leave = Leave(member_id=client.member_id, instance_id=client.instance_id)
                _, effects = self.driver.group.leave([leave], now_ms=self.driver.now_ms)
                self.driver.take(effects)

    @rule(index=st.integers(0, 4))
    def restart(self, index: int) -> None:
        """The process starts anew: it forgot its member id, and its old request is nobody's any more."""
        if index < len(self.clients):
            self.clients[index] = Client(instance_id=self.clients[index].instance_id)

    @rule(ms=st.sampled_from([100, 600, 3_000, 9_000, 30_000]))
    def wait(self, ms: int) -> None:
        self.driver.advance(ms)

    @rule()
    def write(self) -> None:
        self.driver.hold = False
        while self.driver.held:
            self.driver.write(self.driver.held.pop(0))

    @rule()
    def slow_disk(self) -> None:
        self.driver.hold = True

    @rule()
    def fail_over(self) -> None:
        """Another coordinator takes over with what is durable; whoever waited is told so."""
        driver = self.driver
        driver.take(driver.group.close(ErrorCode.not_coordinator, now_ms=driver.now_ms))
        driver.held.clear()
        driver.group = ClassicGroup.restore("g", driver.saved, driver.group.config, now_ms=driver.now_ms)

    @invariant()
    def generations_do_not_go_back_in_the_log(self) -> None:
        assert self.driver.saved.generation >= self.generation
        self.generation = self.driver.saved.generation

    def teardown(self) -> None:
        self.write()
        for _ in range(400):
            for client in self.clients:
                self.step(client)
            self.driver.advance(1_000)
        group = self.driver.group
        if not self.clients:
            assert group.state is State.EMPTY
            return
        assert group.state is State.STABLE
        assert set(group.members) == {client.member_id for client in self.clients}
        assert {client.generation for client in self.clients} == {group.generation}
        assert sorted(p for client in self.clients for p in client.assignment) == list(PARTITIONS)


Crowd.TestCase.settings = settings(max_examples=50, stateful_step_count=60, deadline=None)
TestCrowd = Crowd.TestCase


@pytest.mark.parametrize("seed", range(25))
def test_long_lives_of_crowds(seed: int) -> None:
    """The same rules, drawn evenly and for long: hypothesis prefers short stories."""
    random = Random(seed)
    crowd = Crowd()
    for _ in range(400):
        crowd.everybody()
        draw = random.random()
        if draw < 0.10:
            crowd.arrive(random.random() < 0.4)
        elif draw < 0.14:
            crowd.go(random.randrange(5), random.random() < 0.5)
        elif draw < 0.18:
            crowd.restart(random.randrange(5))
        elif draw < 0.20:
            crowd.fail_over()
        elif draw < 0.35:
            crowd.slow_disk() if random.random() < 0.5 else crowd.write()
        elif draw < 0.80:
            crowd.act(random.randrange(5), random.randrange(1, 4))
        else:
            crowd.wait(random.choice([100, 600, 600, 3_000, 12_000]))
        crowd.generations_do_not_go_back_in_the_log()
    crowd.teardown()
