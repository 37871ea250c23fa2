"""The attacks, in the order of `docs/security.md`, and the tests in which each attack must fail."""

from __future__ import annotations

from dataclasses import dataclass

SERVERS, SHARED, EXTRACT = "tests/remote/servers", "tests/remote/shared", "tests/remote/extract"
TRANSFER = "tests/remote/transfer"


@dataclass(frozen=True)
class Attack:
    """One row: the attack, and the tests (`FILE::NAME`) in which it must fail."""

    row: str
    tests: tuple[str, ...]


ATTACKS = (
    Attack(
        "Another user replaces weights, pauses or reads the server through its port",
        (
            f"{SERVERS}/test_serve.py::test_without_the_key_only_health_answers",
            f"{SERVERS}/test_serve.py::test_the_key_s_file_opens_generation_to_curl_and_the_weights_to_nobody",
            f"{SERVERS}/test_serve.py::test_the_key_is_in_no_process_list_environment_log_or_record",
            f"{SERVERS}/test_serve.py::test_another_user_s_weights_do_not_come_into_a_running_server",
            f"{SERVERS}/test_key.py::test_the_key_is_masked_in_the_log_and_gone_with_the_server",
            f"{SERVERS}/test_key.py::test_a_server_that_answers_without_its_key_is_never_ready",
        ),
    ),
    Attack(
        "Another user talks to SGLang's own sockets under DP attention",
        (f"{SERVERS}/test_open_sockets.py::test_dp_attention_is_refused_while_another_user_has_a_process",),
    ),
    Attack(
        "The model's files are replaced on disk between plan and serve, or while they are loaded",
        (
            f"{SERVERS}/test_supervisor.py::test_a_ready_server_says_which_weights_it_loaded",
            f"{SERVERS}/test_supervisor.py::test_weights_that_are_replaced_while_they_are_loaded_end_the_start",
            f"{EXTRACT}/test_troubles.py::test_a_server_that_loaded_other_weights_than_the_run_was_planned_for_gets_no_record",
        ),
    ),
    Attack(
        "Somebody on the network reaches torch's rendezvous of a server on one host",
        (f"{SERVERS}/test_serve.py::test_a_server_on_one_host_listens_on_loopback_alone",),
    ),
    Attack(
        "Forged record ids fill the dump directory",
        (
            "tests/remote/capture/test_admission.py::test_an_id_whose_session_nobody_registered_leaves_no_trace",
            f"{EXTRACT}/test_contract.py::test_a_request_that_is_no_registered_session_s_leaves_nothing",
            "tests/remote/capture/test_one_rank.py::test_other_traffic_leaves_no_trace",
        ),
    ),
    Attack(
        "A host lies about rows and sizes",
        (
            "tests/hosts/pull/test_hostile_host.py::test_a_row_that_cannot_be_a_record_of_the_run_is_refused",
            "tests/hosts/pull/test_hostile_host.py::test_only_records_of_the_run_are_offered",
            "tests/remote/transfer/test_engine.py::test_bytes_that_are_no_record_of_the_run_are_not_delivered",
        ),
    ),
    Attack(
        "A host answers with bytes, texts and control characters of any kind",
        (
            "tests/hosts/console/test_hostile_text.py::test_every_answer_can_be_shown_without_harm",
            "tests/hosts/transport/test_hostile_answers.py::test_bytes_of_any_kind_end_as_a_sentence",
        ),
    ),
    Attack(
        "Modules in the current folder",
        (
            "tests/hosts/transport/test_local.py::test_nothing_is_imported_from_the_folder_that_the_login_starts_in",
            "tests/hosts/transport/test_local.py::test_a_sender_imports_nothing_from_the_current_folder",
        ),
    ),
    Attack(
        "Another user made the workdir or the payload first",
        (
            "tests/hosts/transport/test_local.py::test_a_workdir_that_another_user_made_first_is_refused",
            "tests/hosts/transport/test_local.py::test_a_workdir_below_a_folder_that_others_can_write_to_is_refused",
            "tests/hosts/transport/test_local.py::test_a_module_beside_the_payload_is_set_aside_with_it",
        ),
    ),
    Attack(
        "Another user's mark has root end a process",
        (f"{SERVERS}/test_other_users.py::test_a_made_up_record_does_not_have_root_end_another_user_s_process",),
    ),
    Attack(
        "FIFOs, devices and links in the place of files",
        (
            f"{SHARED}/test_files.py::test_a_special_file_is_refused_at_once_and_not_changed",
            f"{SHARED}/test_files.py::test_devices_and_files_of_another_user_are_refused",
            f"{SERVERS}/test_other_users.py::test_a_fifo_behind_a_mark_or_as_a_marker_holds_nobody",
            f"{SERVERS}/test_other_users.py::test_a_marker_that_another_user_wrote_or_linked_frees_nothing",
            f"{TRANSFER}/test_engine.py::test_a_part_that_is_no_regular_file_is_removed_and_nothing_is_written_through_it",
            f"{TRANSFER}/test_engine.py::test_a_shard_on_its_host_that_is_a_link_is_not_sent",
            "tests/hosts/transport/test_push.py::test_a_folder_that_another_push_s_name_leads_away_from_is_refused",
            "tests/hosts/transport/test_push.py::test_a_file_that_is_no_regular_one_is_neither_followed_nor_waited_for",
        ),
    ),
    Attack(
        "Containers as bombs",
        (
            "tests/remote/codec/test_hostile_bytes.py::test_a_container_that_grows_is_refused_before_it_costs_memory",
            "tests/remote/codec/test_hostile_bytes.py::test_a_damaged_container_is_refused_or_has_its_size",
        ),
    ),
    Attack(
        "Shard headers and manifests of any kind, and another's ledger in a bucket",
        (
            f"{EXTRACT}/test_store.py::test_any_damaged_header_only_refuses_its_record",
            "tests/remote/transfer/test_foreign_ledger.py::test_an_endless_view_is_no_table",
            "tests/remote/transfer/test_foreign_ledger.py::test_reading_ends_at_its_deadline",
            "tests/remote/transfer/test_foreign_ledger.py::test_rows_of_any_kind_are_read_or_refused",
            f"{TRANSFER}/test_hostile_manifest.py::test_a_destination_s_manifest_of_any_content_is_its_own_or_one_sentence",
            f"{TRANSFER}/test_hostile_manifest.py::test_no_change_to_an_identity_goes_unnoticed",
            "tests/hosts/plan/test_hostile_dataset.py::test_a_manifest_of_any_content_is_understood_or_refused",
        ),
    ),
    Attack(
        "Replies of any kind on a server's port, and names of any kind in its dump directory",
        (
            f"{SERVERS}/test_hostile_reply.py::test_an_answer_of_any_content_is_a_generation_or_a_phrase",
            f"{SERVERS}/test_hostile_reply.py::test_an_endless_answer_is_cut_off",
            f"{EXTRACT}/test_hostile_server.py::test_an_answer_of_any_content_is_accepted_or_fails_only_its_attempt",
            "tests/remote/shard/test_names.py::test_any_file_name_belongs_to_one_request_or_to_none",
        ),
    ),
    Attack(
        "A pattern that searches for ever",
        ("tests/remote/logs/test_follow.py::test_a_pattern_that_searches_for_ever_is_given_up_in_one_sentence",),
    ),
    Attack(
        "Secrets in errors, differences, addresses and logs",
        (
            "tests/hosts/inventory/test_secrets.py::test_no_error_repeats_the_values_near_secrets",
            "tests/hosts/inventory/test_secrets.py::test_diff_modes_says_that_secrets_differ_and_not_what_they_are",
            "tests/hosts/inventory/test_secrets.py::test_no_password_of_a_url_survives",
            "tests/hosts/notify/test_notify.py::test_the_output_of_a_failed_command_shows_none_of_its_secrets",
            "tests/remote/data/test_sources.py::test_no_message_and_no_manifest_repeats_the_credentials_of_a_url",
        ),
    ),
    Attack(
        "Links and shared folders under clean and --free",
        (
            f"{SERVERS}/test_clean.py::test_a_run_that_is_a_link_stays_with_what_it_leads_to_and_is_named",
            f"{SERVERS}/test_clean.py::test_two_workdirs_with_one_log_dir_clean_their_own_logs_alone",
            f"{SERVERS}/test_clean.py::test_nothing_is_freed_through_a_link",
            f"{SERVERS}/test_clean.py::test_a_dry_run_shows_real_paths",
        ),
    ),
)
