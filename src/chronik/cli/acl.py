"""`chronik acl`: who may do what."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from chronik.cli.client import AsJson, Bootstrap, CommandFailed, print_json, print_table, run
from chronik.cli.printable import say
from chronik.security.acls import (
    CLUSTER_NAME,
    AclBinding,
    AclFilter,
    AclIndex,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_binding,
)
from chronik.security.principals import USER_PREFIX
from chronik.words import counted

User = Annotated[str, typer.Option("--user", metavar="NAME", help="a user's name, * for everybody")]
UserFilter = Annotated[str | None, typer.Option("--user", metavar="NAME", help="only of this user")]
Topic = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="a topic, * for all")]
Group = Annotated[str | None, typer.Option("--group", metavar="NAME", help="a group, * for all")]
TransactionalId = Annotated[str | None, typer.Option("--transactional-id", metavar="NAME")]
OnCluster = Annotated[bool, typer.Option("--cluster", help="the cluster itself")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="every name that begins so")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="from this address only")]
Operations = Annotated[
    list[str], typer.Option("--operation", "-o", metavar="NAME", help="read, write, all, ...; repeatable")
]

_NAMES: Final = {operation.name.lower().replace("_", "-"): operation for operation in Operation}


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Say who may do what; with `authorizer` set, nodes see to it.", no_args_is_help=True
    )
    group.command()(add)
    group.command("list")(list_)
    group.command()(remove)
    group.command("test")(decide)
    app.add_typer(group, name="acl")


def _principal(user: str) -> str:
    return user if ":" in user else USER_PREFIX + user


def _operation(name: str) -> Operation:
    found = _NAMES.get(name.lower().replace("_", "-"))
    if found is None or found is Operation.ANY:
        known = ", ".join(name for name in _NAMES if name != "any")
        raise CommandFailed(f"{name} is no operation: {known}")
    return found


def _resource(
    topic: str | None, group: str | None, transactional_id: str | None, on_cluster: bool
) -> tuple[ResourceType, str] | None:
    given = [
        (kind, name)
        for kind, name in (
            (ResourceType.TOPIC, topic),
            (ResourceType.GROUP, group),
            (ResourceType.TRANSACTIONAL_ID, transactional_id),
            (ResourceType.CLUSTER, CLUSTER_NAME if on_cluster else None),
        )
        if name is not None
    ]
    if len(given) > 1:
        raise CommandFailed("name one of --topic, --group, --transactional-id and --cluster at a time")
    return given[0] if given else None


def _required(*given: object) -> tuple[ResourceType, str]:
    found = _resource(*given)  # type: ignore[arg-type]
    if found is None:
        raise CommandFailed("name a resource: --topic, --group, --transactional-id or --cluster")
    return found


def add(
    user: User,
    operations: Operations,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    on_cluster: OnCluster = False,
    prefixed: Prefixed = False,
    host: Host = "*",
    deny: Annotated[
        bool, typer.Option("--deny", help="deny instead of allow; wins over all that allow")
    ] = False,
    servers: Bootstrap = None,
) -> None:
    """Allow or deny somebody something.

    Example: chronik acl add --user alice --topic orders -o read -o write
    """
    from chronik.client.security import create_acls

    kind, name = _required(topic, group, transactional_id, on_cluster)
    bindings = [
        AclBinding(
            resource_type=kind,
            resource_name=name,
            pattern_type=PatternType.PREFIXED if prefixed else PatternType.LITERAL,
            principal=_principal(user),
            host=host,
            operation=_operation(operation),
            permission=Permission.DENY if deny else Permission.ALLOW,
        )
        for operation in operations
    ]
    for binding in bindings:
        try:
            check_binding(binding)
        except ValueError as error:
            raise CommandFailed(str(error)) from None
    run(servers, lambda cluster: create_acls(cluster, bindings))
    for binding in bindings:
        say(str(binding))


def list_(
    user: UserFilter = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    on_cluster: OnCluster = False,
    as_json: AsJson = False,
    servers: Bootstrap = None,
) -> None:
    """List ACLs; of a resource, all that concern it."""
    from chronik.client.security import describe_acls

    wanted = _filter(user, _resource(topic, group, transactional_id, on_cluster), PatternType.MATCH)
    _show(run(servers, lambda cluster: describe_acls(cluster, wanted)), as_json)


def remove(
    user: UserFilter = None,
    operations: Annotated[
        list[str] | None, typer.Option("--operation", "-o", metavar="NAME", help="only these")
    ] = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    on_cluster: OnCluster = False,
    prefixed: Prefixed = False,
    servers: Bootstrap = None,
) -> None:
    """Remove ACLs that name exactly this user or this resource.

    Example: chronik acl remove --user alice --topic orders
    """
    from chronik.client.security import delete_acls

    resource = _resource(topic, group, transactional_id, on_cluster)
    if user is None and resource is None:
        raise CommandFailed("this would remove every ACL: name a user or a resource")
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    gone = []
    for operation in [_operation(name) for name in operations or ()] or [Operation.ANY]:
        wanted = _filter(user, resource, pattern if resource is not None else PatternType.ANY, operation)
        gone += run(servers, lambda cluster, wanted=wanted: delete_acls(cluster, wanted))  # type: ignore[misc]
    for binding in gone:
        say(str(binding))
    print(f"{counted(len(gone), 'ACL')} removed")


def decide(
    user: User,
    operation: Annotated[str, typer.Option("--operation", "-o", metavar="NAME")],
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    on_cluster: OnCluster = False,
    host: Host = "127.0.0.1",
    servers: Bootstrap = None,
) -> None:
    """Say whether somebody may do something, and which ACL decides. Super users are a node's setting.

    Example: chronik acl test --user alice --topic orders -o read
    """
    from chronik.client.security import describe_acls

    kind, name = _required(topic, group, transactional_id, on_cluster)
    wanted = _operation(operation)
    acls = run(servers, lambda cluster: describe_acls(cluster))
    decision = AclIndex(acls).decide(_principal(user), host, wanted, kind, name)
    say(f"{'allowed' if decision.allowed else 'refused'}: {decision.binding or decision.why}")
    raise typer.Exit(0 if decision.allowed else 1)


def _filter(
    user: str | None,
    resource: tuple[ResourceType, str] | None,
    pattern: PatternType,
    operation: Operation = Operation.ANY,
) -> AclFilter:
    kind, name = resource or (ResourceType.ANY, None)
    return AclFilter(
        resource_type=kind,
        resource_name=name,
        pattern_type=pattern if resource is not None else PatternType.ANY,
        principal=None if user is None else _principal(user),
        operation=operation,
    )


def _show(acls: list[AclBinding], as_json: bool) -> None:
    rows = [
        (
            one.permission.name.lower(),
            one.principal,
            one.operation.name.lower(),
            one.resource_type.name.lower(),
            one.resource_name,
            one.pattern_type.name.lower(),
            one.host,
        )
        for one in acls
    ]
    headings = ("permission", "principal", "operation", "type", "resource", "pattern", "host")
    if as_json:
        print_json([dict(zip(headings, row, strict=True)) for row in rows])
    else:
        print_table(headings, rows)
