"""Every endpoint, one file per noun, listed here in the order in which people should read them.

Nothing registers itself on import. Where paths overlap, the first in the list wins.
"""

from __future__ import annotations

from typing import Final

from chronik.admin.endpoint import HttpEndpoint
from chronik.admin.routes.audit import audit_log, take_audit
from chronik.admin.routes.backup import backup_metadata, restore_metadata, restore_records
from chronik.admin.routes.client_metrics import (
    client_metrics,
    client_metrics_node,
    subscribe_metrics,
    unsubscribe_metrics,
)
from chronik.admin.routes.cluster import cluster_status, node_status, nodes_status, status
from chronik.admin.routes.configs import change_topic_config, settings, topic_config
from chronik.admin.routes.console import console_asset, console_page
from chronik.admin.routes.docs import docs_page, openapi
from chronik.admin.routes.doctor import doctor, doctor_node
from chronik.admin.routes.explain import explain, explain_node
from chronik.admin.routes.group_offsets import reset_offsets
from chronik.admin.routes.groups import delete_group, group_details, groups
from chronik.admin.routes.health import health, ready
from chronik.admin.routes.keys import keys, make_key, revoke_key
from chronik.admin.routes.logs import change_levels, levels
from chronik.admin.routes.membership import add_node, demote_node, promote_node, rebalance, remove_node
from chronik.admin.routes.messages import messages, produce_message
from chronik.admin.routes.metrics import metrics
from chronik.admin.routes.partitions import add_partitions, producers
from chronik.admin.routes.raft import raft_status
from chronik.admin.routes.reassign import reassign, reassign_plan, reassign_under_way
from chronik.admin.routes.schema_configs import (
    delete_schema_config,
    delete_subject_schema_config,
    delete_subject_schema_mode,
    schema_config,
    schema_mode,
    set_schema_config,
    set_schema_mode,
    set_subject_schema_config,
    set_subject_schema_mode,
    subject_schema_config,
    subject_schema_mode,
)
from chronik.admin.routes.schema_nodes import registry_ask_node, registry_change_node
from chronik.admin.routes.schemas import (
    check_schema,
    check_schema_version,
    delete_schema_version,
    delete_subject,
    find_schema,
    register_schema,
    schema_by_id,
    schema_id_subjects,
    schema_id_versions,
    schema_list,
    schema_referenced_by,
    schema_subjects,
    schema_text_by_id,
    schema_types,
    schema_version,
    schema_version_text,
    schema_versions,
)
from chronik.admin.routes.search import cat_indices, node_indices, search_all, search_node, search_topic
from chronik.admin.routes.session import log_in, log_out, session
from chronik.admin.routes.sql import sql, sql_explain, sql_tables, sql_tables_posted
from chronik.admin.routes.topics import create_topic, delete_topic, topic_details, topics
from chronik.admin.routes.transactions import abort_here, abort_transaction, transactions
from chronik.admin.routes.upgrade import finalize_upgrade, upgrade_status
from chronik.admin.routes.verify import verify, verify_node, verify_status, verify_status_node
from chronik.admin.routes.watermarks import watermarks

ENDPOINTS: Final[tuple[HttpEndpoint, ...]] = (
    health,
    ready,
    metrics,
    raft_status,
    cluster_status,
    status,
    nodes_status,
    node_status,
    add_node,
    remove_node,
    promote_node,
    demote_node,
    rebalance,
    reassign_plan,
    reassign,
    reassign_under_way,
    upgrade_status,
    finalize_upgrade,
    doctor,
    verify_status,
    verify,
    topics,
    create_topic,
    topic_details,
    delete_topic,
    topic_config,
    change_topic_config,
    add_partitions,
    producers,
    messages,
    produce_message,
    watermarks,
    explain,
    groups,
    group_details,
    delete_group,
    reset_offsets,
    transactions,
    abort_transaction,
    client_metrics,
    subscribe_metrics,
    unsubscribe_metrics,
    search_all,
    cat_indices,
    sql,
    sql_tables,
    sql_tables_posted,
    sql_explain,
    search_node,
    node_indices,
    explain_node,
    doctor_node,
    verify_status_node,
    verify_node,
    client_metrics_node,
    abort_here,
    search_topic,
    schema_subjects,
    schema_versions,
    schema_version,
    schema_version_text,
    schema_referenced_by,
    register_schema,
    find_schema,
    delete_subject,
    delete_schema_version,
    schema_types,
    schema_list,
    schema_by_id,
    schema_text_by_id,
    schema_id_subjects,
    schema_id_versions,
    check_schema,
    check_schema_version,
    schema_config,
    set_schema_config,
    delete_schema_config,
    subject_schema_config,
    set_subject_schema_config,
    delete_subject_schema_config,
    schema_mode,
    set_schema_mode,
    subject_schema_mode,
    set_subject_schema_mode,
    delete_subject_schema_mode,
    registry_ask_node,
    registry_change_node,
    audit_log,
    take_audit,
    session,
    log_in,
    log_out,
    keys,
    make_key,
    revoke_key,
    backup_metadata,
    restore_metadata,
    restore_records,
    settings,
    levels,
    change_levels,
    openapi,
    docs_page,
    console_page,
    console_asset,
)
