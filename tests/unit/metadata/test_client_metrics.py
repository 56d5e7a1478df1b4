"""Which clients a metrics subscription is for."""

from __future__ import annotations

import pytest

from chronik.metadata.client_metrics import MATCH_KEYS, MetricsSubscription, check_client_metrics
from chronik.model import RequestError


def test_a_subscription_is_for_clients_that_match_every_expression() -> None:
    found = MetricsSubscription.parse("s", {"match": r"client_id=app-\d+,client_software_name=librd.*"})
    client = dict.fromkeys(MATCH_KEYS, "") | {"client_id": "app-7", "client_software_name": "librdkafka"}
    assert found.is_for(client)
    assert not found.is_for({**client, "client_id": "app-x"})


@pytest.mark.parametrize("text", [r"(\pL{100})", "(", "a" * 1_001])
def test_an_expression_that_takes_much_memory_is_refused_like_one_that_makes_no_sense(text: str) -> None:
    """The first one is short; its program would take megabytes."""
    with pytest.raises(RequestError, match="pattern"):
        check_client_metrics({"match": f"client_id={text}"})
