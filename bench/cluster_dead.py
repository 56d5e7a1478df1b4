"""What writers with acks=all notice of one dead follower (S02)."""

from __future__ import annotations

import statistics
import time
from typing import Any

from confluent_kafka.cimpl import KafkaError, NewTopic, Producer

from bench.cluster_loads import Brokers, Results, admin_of, create, producer_of, send, settle

STALL = "pause of acks=all when a follower is killed, s"
REFUSED = "refused at once without enough in-sync replicas, p50 ms"
SENDS = 50


def dead_follower(brokers: Brokers) -> Results:
    """A follower is killed. Two of three replicas are enough for one topic; the other wants all three."""
    admin = admin_of(brokers)
    create(admin, "two-suffice")
    strict = NewTopic("all-three", 1, 3, config={"min.insync.replicas": "3"})
    admin.create_topics([strict])["all-three"].result(60)
    for topic in ("two-suffice", "all-three"):
        settle(brokers, topic)
    leaders = {brokers.leader_of("two-suffice"), brokers.leader_of("all-three")}
    victim = next(node_id for node_id in brokers.nodes if node_id not in leaders)
    producer = producer_of(brokers)
    send(producer, "two-suffice")
    brokers.kill(victim)
    try:
        stall = max(send(producer, "two-suffice") for _ in range(SENDS))
        refusing = producer_of(brokers, retries=0)
        refusal(refusing)  # may wait for the ISR of its own topic
        refused = statistics.median(1000 * refusal(refusing) for _ in range(SENDS))
    finally:
        brokers.start(victim)
    return {STALL: stall, REFUSED: refused}


def refusal(producer: Producer) -> float:
    """Seconds until the client is told that there are not enough in-sync replicas."""
    codes: list[Any] = []
    began = time.monotonic()
    producer.produce("all-three", b"x", on_delivery=lambda error, _: codes.append(error and error.code()))
    producer.flush(60)
    took = time.monotonic() - began
    if codes not in ([KafkaError.NOT_ENOUGH_REPLICAS], [KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND]):
        raise RuntimeError(f"not refused for want of in-sync replicas: {codes}")
    return took
