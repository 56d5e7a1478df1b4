"""`chronik transaction`: see what is open, and end what hangs."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chronik.cli.client import AsJson, Bootstrap, CommandFailed, print_json, print_table, run
from chronik.cli.printable import say
from chronik.model import ErrorCode, RequestError, TopicPartition

if TYPE_CHECKING:
    from chronik.client import Cluster

_States = Annotated[
    list[str] | None,
    typer.Option(
        "--state", "-s", metavar="STATE", help="only those in this state, such as Ongoing; repeatable"
    ),
]
_TransactionalId = Annotated[
    str | None, typer.Argument(metavar="TRANSACTIONAL_ID", help="whose transaction", show_default=False)
]
_Topic = Annotated[str | None, typer.Option("--topic", "-t", help="where it hangs")]
_Partition = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, metavar="N", help="where it hangs")
]
_ProducerId = Annotated[
    int | None, typer.Option("--producer-id", min=0, metavar="N", help="whose it is, if several hang there")
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="See which transactions are open, and end one that hangs.", no_args_is_help=True)
    group.command("list")(list_transactions)
    group.command()(abort)
    app.add_typer(group, name="transaction")


def list_transactions(states: _States = None, as_json: AsJson = False, servers: Bootstrap = None) -> None:
    """List transactions: state, producer, how long they are open and where.

    Examples:

      chronik transaction list

      chronik transaction list --state Ongoing --json
    """

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        from chronik.client.transactions import Transactions

        transactions = Transactions(cluster)
        rows = []
        for listed in await transactions.list(states or ()):
            try:
                found = await transactions.describe(listed.transactional_id)
            except RequestError as error:
                if error.code != ErrorCode.transactional_id_not_found:
                    raise
                continue  # expired since it was listed
            rows.append(
                {
                    "transactional_id": found.transactional_id,
                    "state": found.state,
                    "producer_id": found.producer_id,
                    "producer_epoch": found.producer_epoch,
                    "coordinator": found.coordinator_id,
                    "started_at": found.started_at.isoformat() if found.started_at else None,
                    "timeout_ms": found.timeout_ms,
                    "partitions": [str(tp) for tp in found.partitions],
                }
            )
        return rows

    rows = run(servers, work)
    if as_json:
        print_json(rows)
    elif not rows:
        print("No transactions.")
    else:
        headings = ("transactional id", "state", "#producer", "#epoch", "open for", "partitions")
        print_table(headings, (_row(row) for row in rows))


def _row(row: dict[str, Any]) -> list[object]:
    age = None
    if row["started_at"]:
        started_at = datetime.datetime.fromisoformat(row["started_at"])
        age = f"{(datetime.datetime.now(datetime.UTC) - started_at).total_seconds():.0f} s"
    keys = ("transactional_id", "state", "producer_id", "producer_epoch")
    return [*(row[key] for key in keys), age, row["partitions"]]


def abort(
    transactional_id: _TransactionalId = None,
    topic: _Topic = None,
    partition: _Partition = None,
    producer_id: _ProducerId = None,
    servers: Bootstrap = None,
) -> None:
    """Abort an open transaction and fence its producer.

    With --topic and --partition: abort what hangs in that partition though no coordinator knows it any more.

    Examples:

      chronik transaction abort payments-1

      chronik transaction abort --topic orders --partition 0
    """
    if transactional_id is not None:
        if topic is not None or partition is not None or producer_id is not None:
            raise CommandFailed("give a transactional id, or --topic and --partition, not both")
        say(run(servers, lambda cluster: _abort_known(cluster, transactional_id)))
    elif topic is not None and partition is not None:
        tp = TopicPartition(topic, partition)
        say(run(servers, lambda cluster: _abort_hanging(cluster, tp, producer_id)))
    else:
        raise CommandFailed("say which: give a transactional id, or --topic and --partition")


async def _abort_known(cluster: Cluster, transactional_id: str) -> str:
    from chronik.client.transactions import Transactions

    transactions = Transactions(cluster)
    try:
        found = await transactions.describe(transactional_id)
    except RequestError as error:
        if error.code == ErrorCode.transactional_id_not_found:
            raise CommandFailed(
                f"no transaction has the id {transactional_id!r}: `chronik transaction list` shows them"
            ) from None
        raise
    if found.started_at is None or found.state != "Ongoing":
        raise CommandFailed(f"transaction {transactional_id!r} is not open: its state is {found.state}")
    await transactions.abort(transactional_id)
    return f"{transactional_id} aborted, its producer {found.producer_id} is fenced"


async def _abort_hanging(cluster: Cluster, tp: TopicPartition, producer_id: int | None) -> str:
    from chronik.client.transactions import Transactions

    transactions = Transactions(cluster)
    hanging = [
        producer
        for producer in await transactions.producers(tp)
        if producer.transaction_start_offset >= 0 and producer_id in (None, producer.producer_id)
    ]
    if not hanging:
        raise CommandFailed(f"no transaction is open in {tp}")
    if len(hanging) > 1:
        ids = ", ".join(str(producer.producer_id) for producer in hanging)
        raise CommandFailed(f"several transactions are open in {tp}: choose with --producer-id among {ids}")
    (producer,) = hanging
    await transactions.abort_hanging(tp, producer)
    start_offset = producer.transaction_start_offset
    return f"{tp}: transaction of producer {producer.producer_id} from offset {start_offset} aborted"
