"""Each function of DuckDB's catalogue was judged: it is allowed, or it is known to be refused."""

from __future__ import annotations

from typing import Final

import duckdb
import pytest

from chronik.query.functions import FUNCTIONS, TABLE_FUNCTIONS
from tests.fuzz import canaries, queries

SHOW_THE_NODE: Final = """
    col_description current_connection_id current_query current_query_id current_schemas current_setting
    current_transaction_id get_block_size getvariable has_any_column_privilege has_column_privilege
    has_database_privilege has_foreign_data_wrapper_privilege has_function_privilege has_language_privilege
    has_schema_privilege has_sequence_privilege has_server_privilege has_table_privilege
    has_tablespace_privilege in_search_path inet_client_addr inet_client_port inet_server_addr
    inet_server_port map_to_pg_oid obj_description parse_duckdb_log_message pg_collation_is_visible
    pg_conf_load_time pg_conversion_is_visible pg_function_is_visible pg_get_constraintdef pg_get_expr
    pg_get_viewdef pg_has_role pg_is_other_temp_schema pg_my_temp_schema pg_opclass_is_visible
    pg_operator_is_visible pg_opfamily_is_visible pg_postmaster_start_time pg_table_is_visible
    pg_ts_config_is_visible pg_ts_dict_is_visible pg_ts_parser_is_visible pg_ts_template_is_visible
    pg_type_is_visible shobj_description stats txid_current vector_type
"""
READ_FILES: Final = """
    json_deserialize_sql json_serialize_plan json_serialize_sql
"""
LEAVE_SOMETHING_OR_WAIT: Final = """
    currval nextval pg_sleep setval sleep_ms write_log
"""
INNER: Final = """
    __between __cast bitstring_byte_comparable cast_to_type combine combine_aggr create_sort_key finalize
    hive_partition_component icu_sort_key index_key invoke is distinct from is not distinct from
    json_copy_strftime_if_date json_copy_strftime_if_timestamp make_type remap_struct replace_type
    timetz_byte_comparable to_aggregate_state variant_bytes_to_variant variant_comparator
    variant_group_object variant_to_parquet_variant
"""
INNER_OF_TWO_WORDS: Final = frozenset({"is distinct from", "is not distinct from"})
"""Called by their operators, which are no functions in a syntax tree."""
INNER_PREFIXES: Final = ("__internal_", "collate_", "icu_collate_")
TABLE_FUNCTIONS_REFUSED: Final = """
    add_parquet_key arrow_scan arrow_scan_dumb checkpoint collations copy_database create_external_resource
    database_list database_size deregister_external_resource destroy_external_resource
    disable_checkpoint_on_shutdown disable_logging disable_object_cache disable_optimizer
    disable_print_progress_bar disable_profile disable_profiling disable_progress_bar disable_verification
    disable_verify_parallelism duckdb_approx_database_count duckdb_available_metrics duckdb_columns
    duckdb_connection_count duckdb_constraints duckdb_coordinate_systems duckdb_databases
    duckdb_dependencies duckdb_dialects duckdb_eviction_queues duckdb_extension_repositories
    duckdb_extensions duckdb_external_file_cache duckdb_external_resource_types duckdb_external_resources
    duckdb_functions duckdb_grammar_extensions duckdb_indexes duckdb_keywords duckdb_log_contexts
    duckdb_logs duckdb_logs_parsed duckdb_memory duckdb_optimizers duckdb_prepared_statements
    duckdb_profiling_settings duckdb_schemas duckdb_secret_type_parameters duckdb_secret_types
    duckdb_secrets duckdb_sequences duckdb_settings duckdb_table_sample duckdb_tables duckdb_temporary_files
    duckdb_triggers duckdb_types duckdb_variables duckdb_views enable_checkpoint_on_shutdown enable_logging
    enable_object_cache enable_optimizer enable_print_progress_bar enable_profile enable_profiling
    enable_progress_bar enable_verification extension_versions force_checkpoint functions glob histogram
    histogram_values icu_calendar_names import_database json_execute_serialized_sql metadata_info
    pandas_scan parquet_bloom_probe parquet_file_metadata parquet_full_metadata parquet_kv_metadata
    parquet_metadata parquet_scan parquet_schema pg_timezone_names platform pragma_collations
    pragma_database_size pragma_metadata_info pragma_platform pragma_show pragma_storage_info
    pragma_table_info pragma_user_agent pragma_version python_arrow_scan python_map_function query
    query_table read_blob read_csv read_csv_auto read_duckdb read_json read_json_auto read_json_objects
    read_json_objects_auto read_ndjson read_ndjson_auto read_ndjson_objects read_parquet
    read_single_csv_file read_single_json_file read_single_parquet_file read_text register_external_resource
    register_external_resource_type seq_scan show show_databases show_tables show_tables_expanded sniff_csv
    storage_info summary table_info test_all_types test_vector_types truncate_duckdb_logs user_agent
    verify_parallelism version which_secret
"""
IN_NO_CATALOGUE: Final = frozenset({"unnest"})
"""Functions of the parser."""


def catalogue(*kinds: str) -> set[str]:
    with duckdb.connect() as connection:
        query = "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE function_type IN "
        return {name for (name,) in connection.execute(f"{query}{kinds}").fetchall()}


def test_every_function_was_judged() -> None:
    refused = {*SHOW_THE_NODE.split(), *READ_FILES.split(), *LEAVE_SOMETHING_OR_WAIT.split(), *INNER.split()}
    refused |= INNER_OF_TWO_WORDS
    known = catalogue("scalar", "aggregate", "macro", "window")
    assert not refused & FUNCTIONS
    unjudged = {name for name in known - FUNCTIONS - refused if not name.startswith(INNER_PREFIXES)}
    assert not unjudged, "judge what these can show or do, then allow or refuse them"
    assert known >= FUNCTIONS - IN_NO_CATALOGUE


def test_every_table_function_was_judged() -> None:
    refused = set(TABLE_FUNCTIONS_REFUSED.split())
    known = catalogue("table", "table_macro", "pragma")
    assert not refused & TABLE_FUNCTIONS
    assert not known - TABLE_FUNCTIONS - refused
    assert known >= TABLE_FUNCTIONS


def shown(connection: duckdb.DuckDBPyConnection, call: str) -> str:
    try:
        return str(connection.execute(f"SELECT {call} FROM range(1)").fetchall())
    except duckdb.Error as error:
        return str(error)


def reveals(connection: duckdb.DuckDBPyConnection, function: str) -> list[str]:
    """Calls of this function that show a file's content, in a database that may open any file."""
    name = function if function.isidentifier() else f'"{function}"'
    texts = ["'" + each.replace("'", "''") + "'" for each in (*queries.STATEMENTS, str(canaries.TEXT))]
    calls = [f"{name}({text}{more})" for text in texts for more in ("", ", optimize := true", ", 'a'", ", 1")]
    return [call for call in calls if canaries.WORD in shown(connection, call)]


def test_no_function_that_may_be_called_reads_files() -> None:
    canaries.plant()
    with duckdb.connect() as connection:
        assert reveals(connection, "json_serialize_plan"), "the canary is where it should be"
        assert not [call for function in FUNCTIONS for call in reveals(connection, function)]
    assert not canaries.written(canaries.FOLDER)


def test_a_new_function_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.query.test_functions.FUNCTIONS", FUNCTIONS - {"lower"})
    with pytest.raises(AssertionError, match="judge"):
        test_every_function_was_judged()
