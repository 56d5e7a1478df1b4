"""More defects of the table of requirements in docs/TESTING.md: HTTP and the console, logins, hostile input.

`tools/plants.py` plants them.
"""

from __future__ import annotations

from typing import Final

from tools.planted_failures import Plant

__all__ = ["ROWS"]

ROWS: Final = (
    Plant(
        "how far followers are behind is not told",
        "H03",
        "admin/scrape.py",
        '        yield from _family("chronik_replication_lag_records", lag)\n',
        "        del lag\n",
        ("tests/unit/admin/test_metrics.py::test_the_scrape_has_the_names_of_the_table_and_no_others",),
        is_quick=True,
    ),
    Plant(
        "the dashboard shows a metric that is not there",
        "H03",
        "deploy/grafana/chronik.json",
        '"expr": "chronik_replication_lag_records{',
        '"expr": "chronik_replica_lag_records{',
        ("tests/unit/test_deploy.py::test_only_names_that_exist",),
        is_quick=True,
    ),
    Plant(
        "the page of messages does not load what was committed",
        "H07",
        "admin/console/pages/messages.js",
        "          if (moved && wanted.current.follows) await load();\n",
        "          if (moved && !wanted.current.follows) await load();\n",
        ("tests/browser/test_console.py::test_records_of_other_clients_arrive_live",),
    ),
    Plant(
        "every listener says the node's first address",
        "X01",
        "server/listeners.py",
        "        if spec.advertised is not None:\n",
        "        if spec.advertised is not None and spec.name == OWN:\n",
        ("tests/unit/server/test_listeners.py::test_each_protocol_at_once_and_each_says_its_own_address",),
        is_quick=True,
    ),
    Plant(
        "a new certificate is shown after the next start",
        "X01",
        "links/certificates.py",
        "                self._contexts = self._read()\n",
        "                self._read()\n",
        ("tests/security/test_node_tls.py::test_certificates_are_read_again_and_connections_stay",),
    ),
    Plant(
        "a debt is forgiven with the next request",
        "X04",
        "security/quotas.py",
        "        self._buckets[bucket] = (balance, now_s)\n",
        "        self._buckets[bucket] = (max(0.0, balance), now_s)\n",
        ("tests/unit/security/test_quotas.py::test_a_debt_is_never_forgiven",),
        is_quick=True,
    ),
    Plant(
        "what is fetched costs nothing",
        "X04",
        "server/throttling.py",
        "        charges.append((CONSUMER_RATE, cost.response_bytes))\n",
        "        charges.append((CONSUMER_RATE, 0))\n",
        (
            "tests/unit/server/test_quotas.py"
            "::test_a_fetch_is_no_larger_than_its_quota_and_says_how_long_to_wait",
        ),
        is_quick=True,
    ),
    Plant(
        "of two secrets a node believes the one that it proves",
        "X05",
        "links/handshake.py",
        "        known = {_hint(secret): secret for secret in own.secrets}\n",
        "        known = {_hint(secret): secret for secret in own.secrets[:1]}\n",
        ("tests/unit/links/test_handshake.py::test_neighbouring_steps_of_a_rotation_understand_each_other",),
        is_quick=True,
    ),
    Plant(
        "a node is believed without its key",
        "X05",
        "links/handshake.py",
        "        if registered and registered != public_key:\n",
        "        if registered and public_key and registered != public_key:\n",
        ("tests/unit/links/test_handshake.py::test_a_stranger_does_not_get_in",),
        is_quick=True,
    ),
    Plant(
        "nodes that moved on to a closed listener are not let in as nodes",
        "X07",
        "server/listeners.py",
        "        return frozenset(known)\n",
        "        return frozenset({own.name})\n",
        (
            "tests/unit/server/test_listeners.py"
            "::test_while_their_own_listener_is_open_nodes_that_moved_on_come_by_any",
        ),
        is_quick=True,
    ),
    Plant(
        "a peer that has no TLS yet is not spoken to",
        "X07",
        "links/connections.py",
        "            if tls.is_required:\n",
        "            if not tls.is_required or tls.is_required:\n",
        ("tests/security/test_node_tls.py::test_a_cluster_moves_to_tls_node_by_node",),
    ),
    Plant(
        "blocks of snappy have the limit each",
        "R01",
        "records/compression.py",
        "        left -= len(block)\n",
        "        left -= 0\n",
        ("tests/unit/records/test_compression.py::test_snappy_blocks_count_together",),
        is_quick=True,
    ),
    Plant(
        "batches of any size are looked into on the loop",
        "R01",
        "replication/admission.py",
        "    if header.record_count > LOOP_RECORDS_MAX or len(records) > size_max:\n",
        "    if header.record_count < 0 or len(records) > 2**31 + size_max:\n",
        ("tests/unit/server/test_large_batches.py::test_they_are_looked_into_beside_the_loop",),
        is_quick=True,
    ),
    Plant(
        "the query process may start others",
        "R02",
        "query/confinement.py",
        "    for number in machine.refused:\n",
        "    for number in machine.refused[9:]:\n",
        ("tests/unit/query/test_confinement.py::test_nothing_else_is",),
        is_quick=True,
    ),
    Plant(
        "the query process takes twice the memory that it may",
        "R02",
        "query/confinement.py",
        "resource.RLIMIT_DATA, wanted.data_bytes_max, f",
        "resource.RLIMIT_DATA, 2 * wanted.data_bytes_max, f",
        ("tests/unit/query/test_confinement.py::test_memory_and_files_are_limited",),
        is_quick=True,
    ),
    Plant(
        "a query reads settings of the node",
        "R02",
        "query/statement.py",
        "        _check_function(node, FUNCTIONS)\n",
        '        _check_function(node, FUNCTIONS | {"current_setting"})\n',
        ("tests/unit/query/test_statement.py::test_what_shows_more_than_topics_is_refused",),
        is_quick=True,
    ),
    Plant(
        "a bad batch costs all that were fetched with it",
        "R03",
        "columns/scanner.py",
        "            for index in range(len(batches)):\n"
        "                yield from self._decoded(body, batches[index : index + 1], window, skip)\n",
        "            for row in batches:\n                skip(row, error)\n",
        ("tests/unit/columns/test_poison.py::test_a_batch_that_cannot_be_read_costs_itself_alone",),
        is_quick=True,
    ),
    Plant(
        "a null array ends a request with a traceback",
        "R08",
        "wire/reading.py",
        '            raise PeerError(f"{field.name} is null")\n        cursor.reserve(count, item_size_min)',
        '            raise TypeError(f"{field.name} is null")\n        cursor.reserve(count, item_size_min)',
        ("tests/fuzz/test_short.py::test_nothing_that_a_stranger_sends_hurts",),
    ),
)
