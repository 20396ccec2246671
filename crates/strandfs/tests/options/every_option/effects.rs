//! Where the effect of each option is observed on a live mount.

/// Each option with the name of a test.
pub const EFFECTS: &[(&str, &str)] = &[
    ("branches", "branch_modes_limit_what_is_done_where"),
    ("mountpoint", "the_mountpoint_can_be_an_option"),
    ("config", "options_come_from_the_file_that_config_names"),
    ("mount-over", "a_second_mount_is_refused_unless_asked_for"),
    (
        "nonempty",
        "a_mount_with_its_words_in_the_wrong_order_is_refused",
    ),
    (
        "on-missing",
        "what_is_on_a_vanished_branch_does_not_look_deleted",
    ),
    ("branch-marker", "a_branch_without_its_marker_is_not_there"),
    (
        "cross-mounts",
        "with_cross_mounts_none_no_mount_below_a_branch_is_crossed",
    ),
    (
        "branch-check-interval",
        "a_renamed_branch_directory_is_noticed_by_the_next_check",
    ),
    (
        "branch-slow-after",
        "a_stuck_branch_delays_only_those_who_need_it",
    ),
    (
        "branch-deadline",
        "who_needs_a_stuck_branch_fails_at_the_deadline",
    ),
    ("minfreespace", "reserves_keep_branches_from_filling"),
    ("fsname", "the_source_shown_has_whole_names"),
    ("subtype", "a_pool_can_show_the_type_of_mergerfs"),
    ("statfs", "statfs_adds_up_the_branches"),
    ("passthrough.io", "status_says_whether_and_why"),
    ("preload", "an_open_ends_in_the_branch_file"),
    (
        "category.action",
        "action_policies_choose_the_copies_that_change",
    ),
    ("category.create", "each_create_policy_picks_its_branch"),
    (
        "category.search",
        "search_policies_choose_the_copy_that_is_read",
    ),
    (
        "func.access",
        "search_functions_look_where_their_policy_says",
    ),
    (
        "func.chmod",
        "action_functions_change_the_copies_their_policy_says",
    ),
    (
        "func.chown",
        "action_functions_change_the_copies_their_policy_says",
    ),
    (
        "func.create",
        "create_functions_make_things_where_their_policy_says",
    ),
    (
        "func.getattr",
        "search_functions_look_where_their_policy_says",
    ),
    (
        "func.getxattr",
        "search_functions_look_where_their_policy_says",
    ),
    (
        "func.link",
        "names_change_on_the_branches_their_policy_says",
    ),
    (
        "func.listxattr",
        "search_functions_look_where_their_policy_says",
    ),
    (
        "func.mkdir",
        "create_functions_make_things_where_their_policy_says",
    ),
    (
        "func.mknod",
        "create_functions_make_things_where_their_policy_says",
    ),
    ("func.open", "search_functions_look_where_their_policy_says"),
    (
        "func.readlink",
        "search_functions_look_where_their_policy_says",
    ),
    (
        "func.removexattr",
        "action_functions_change_the_copies_their_policy_says",
    ),
    (
        "func.rename",
        "names_change_on_the_branches_their_policy_says",
    ),
    (
        "func.rmdir",
        "names_change_on_the_branches_their_policy_says",
    ),
    (
        "func.setxattr",
        "action_functions_change_the_copies_their_policy_says",
    ),
    (
        "func.symlink",
        "create_functions_make_things_where_their_policy_says",
    ),
    (
        "func.truncate",
        "action_functions_change_the_copies_their_policy_says",
    ),
    (
        "func.unlink",
        "names_change_on_the_branches_their_policy_says",
    ),
    (
        "func.utimens",
        "action_functions_change_the_copies_their_policy_says",
    ),
    (
        "ignorepponrename",
        "rename_and_link_may_leave_the_path_when_told_so",
    ),
    (
        "cache.files",
        "the_next_open_sees_a_change_unless_the_mode_is_full",
    ),
    (
        "cache.files.process-names",
        "per_process_caches_for_the_named_programs_only",
    ),
    (
        "cache.attr",
        "changes_on_a_branch_are_seen_within_the_timeouts",
    ),
    (
        "cache.entry",
        "changes_on_a_branch_are_seen_within_the_timeouts",
    ),
    (
        "cache.negative-entry",
        "changes_on_a_branch_are_seen_within_the_timeouts",
    ),
    (
        "debug",
        "a_log_file_is_appended_to_and_debug_tells_every_request",
    ),
    (
        "log.file",
        "a_log_file_is_appended_to_and_debug_tells_every_request",
    ),
    (
        "slow.log",
        "a_request_that_a_branch_delays_is_logged_with_the_branch_and_who_asked",
    ),
    (
        "notify.command",
        "a_branch_that_vanishes_is_replaced_and_comes_back_is_told_of",
    ),
    (
        "notify.interval",
        "the_same_event_is_told_once_in_the_interval_and_at_its_end_if_it_is_still_so",
    ),
    (
        "notify.timeout",
        "a_command_that_hangs_is_killed_with_what_it_started_and_holds_up_nobody",
    ),
    (
        "notify.full-below",
        "a_branch_that_fills_up_is_told_of_and_not_one_that_is_read_only",
    ),
    (
        "metrics.listen",
        "whoever_collects_metrics_reads_them_over_http",
    ),
    (
        "func.readdir",
        "every_rule_lists_the_same_in_the_same_order",
    ),
    ("inodecalc", "numbers_depend_on_what_the_form_says"),
    ("symlinkify", "files_at_rest_are_links_to_their_branch"),
    ("symlinkify-timeout", "a_file_changed_lately_is_not_at_rest"),
    ("follow-symlinks", "each_rule_follows_what_its_name_says"),
    (
        "cache.statfs",
        "cache_statfs_lets_policies_trust_old_figures",
    ),
    (
        "cache.symlinks",
        "cache_symlinks_keeps_the_targets_of_symlinks",
    ),
    (
        "link-cow",
        "a_write_through_one_name_leaves_the_others_as_they_were",
    ),
    (
        "nfsopenhack",
        "read_only_files_are_opened_for_writing_where_asked_for",
    ),
    ("uid", "everything_is_shown_with_the_owner_asked_for"),
    ("gid", "everything_is_shown_with_the_owner_asked_for"),
    ("umask", "everything_is_shown_with_the_permissions_left"),
    (
        "lazy-umount-mountpoint",
        "a_pool_takes_the_place_of_another_whose_open_files_live_on",
    ),
    ("allow-idmap", "mapped_users_own_what_they_make"),
    ("async-read", "async_read_is_agreed_with_the_kernel_or_not"),
    ("auto-unmount", "auto_unmount_leaves_no_dead_mount_behind"),
    (
        "core-dumps",
        "the_servers_memory_is_kept_from_disk_and_debuggers",
    ),
    ("cache.readdir", "cache_readdir_keeps_listings"),
    ("cache.writeback", "cache_writeback_collects_small_writes"),
    (
        "direct-io-allow-mmap",
        "direct_io_allow_mmap_lets_uncached_files_be_mapped",
    ),
    (
        "dropcacheonclose",
        "dropcacheonclose_leaves_no_pages_on_the_branch",
    ),
    (
        "flush-on-close",
        "flush_on_close_says_which_closes_reach_the_server",
    ),
    ("fuse-msg-size", "fuse_msg_size_bounds_each_message"),
    (
        "parallel-direct-writes",
        "parallel_direct_writes_run_at_once_or_one_after_the_other",
    ),
    (
        "threads",
        "there_are_never_more_threads_than_the_option_says",
    ),
    ("process-thread-count", "both_thread_counts_are_added_up"),
    (
        "pin-threads",
        "pin_threads_puts_the_reader_and_the_others_on_their_cpus",
    ),
    ("transport", "status_says_which_transport_and_why"),
    (
        "scheduling-priority",
        "scheduling_priority_is_the_nice_value_of_every_thread",
    ),
    (
        "proxy-ioprio",
        "proxy_ioprio_gives_the_server_the_callers_io_priority",
    ),
    (
        "readahead",
        "readahead_is_set_for_the_pool_and_its_branches",
    ),
    (
        "branches-mount-timeout",
        "a_branch_is_mounted_and_waited_for",
    ),
    (
        "branches-mount-timeout-fail",
        "a_branch_that_is_not_mounted_in_time_is_told_or_refused",
    ),
    ("coherence", "strict_is_never_stale"),
    ("nullrw", "nullrw_moves_no_data_and_says_what_it_turns_off"),
    ("posix-acl", "acls_are_kept_enforced_and_inherited"),
    ("dev", "special_files_are_made_on_the_branch"),
    ("ro", "a_read_only_pool_refuses_changes"),
    ("suid", "mount_flags_reach_the_kernel"),
    ("noexec", "mount_flags_reach_the_kernel"),
    ("sync", "a_pool_mounted_sync_has_each_write_on_disk"),
    (
        "dirsync",
        "a_pool_mounted_dirsync_or_sync_has_each_change_of_names_on_disk",
    ),
    ("noatime", "mount_flags_reach_the_kernel"),
    ("nodiratime", "mount_flags_reach_the_kernel"),
    ("relatime", "mount_flags_reach_the_kernel"),
    ("strictatime", "mount_flags_reach_the_kernel"),
    ("lazytime", "mount_flags_reach_the_kernel"),
    ("allow-other", "others_come_in_only_where_they_may"),
    ("context", "labels_reach_the_kernel"),
    ("fscontext", "labels_reach_the_kernel"),
    ("defcontext", "labels_reach_the_kernel"),
    ("rootcontext", "labels_reach_the_kernel"),
    (
        "passthrough.max-stack-depth",
        "passthrough_reaches_as_deep_as_it_is_told",
    ),
    (
        "passthrough.headroom",
        "files_are_created_under_the_servers_hand_below_the_headroom",
    ),
    ("moveonenospc", "every_handle_follows_a_file_that_moves"),
    (
        "relocate.hold",
        "a_write_is_held_no_longer_than_the_deadline",
    ),
    (
        "passthrough.unheld",
        "writers_go_through_the_server_where_writes_cannot_be_held_and_the_disk_is_slow",
    ),
    (
        "relocate.ahead",
        "closed_files_make_way_for_one_that_cannot_move",
    ),
    ("relocate.rate", "no_more_than_the_rate_is_moved_per_second"),
    ("link-exdev", "links_between_branches_become_symbolic_ones"),
    (
        "rename-exdev",
        "renames_between_branches_become_symbolic_links",
    ),
    ("xattr", "xattr_says_what_attribute_calls_see"),
    (
        "security-capability",
        "security_capability_is_passed_on_or_not",
    ),
    (
        "kernel-permissions-check",
        "kernel_permissions_check_keeps_strangers_out",
    ),
    ("export-support", "export_support_finds_files_by_handle"),
    (
        "statfs-ignore",
        "statfs_ignore_leaves_out_the_free_space_of_closed_branches",
    ),
    (
        "handle-killpriv-v2",
        "handle_killpriv_v2_spares_a_question_before_each_write",
    ),
    (
        "handle-killpriv",
        "handle_killpriv_is_agreed_with_the_kernel_or_not",
    ),
    ("setuid", "the_server_runs_as_the_user_it_is_told_to"),
];
