//! The cases that hold over every engine of the store.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use millpond_store::{EmbeddedBackend, EmbeddedOptions, Store};

use crate::etcd::{Etcd, left_out};
use crate::support::Fixture;
use crate::{
    answers, attrs, backing, contents, delegations, directories, feed, lists, locks, names,
    objects, objects_lists, orphans, quotas, renames, shares, trash, uploads, xattrs,
};

type Case = fn(Fixture) -> Pin<Box<dyn Future<Output = ()> + Send>>;

macro_rules! cases {
    ($($module:ident :: $name:ident),* $(,)?) => {
        vec![$((
            concat!(stringify!($module), "::", stringify!($name)),
            (|fixture| Box::pin($module::$name(fixture))) as Case,
        )),*]
    };
}

#[expect(clippy::too_many_lines, reason = "a list")]
fn cases() -> Vec<(&'static str, Case)> {
    cases![
        names::create_exclusive_and_not,
        names::files_without_a_place_are_made_when_there_is_one,
        names::promised_files_have_the_numbers_that_mounts_gave_them,
        names::every_kind_is_made_and_found,
        names::what_makes_no_sense_is_refused,
        names::a_removed_directory_takes_no_names,
        names::directories_count_their_directories,
        names::unlink_and_rmdir_know_their_kinds,
        names::links_count_and_have_a_limit,
        names::unchecked_callers_need_permission,
        names::sticky_directories_protect_owners,
        names::set_group_id_is_inherited,
        names::directory_times_follow_their_entries,
        names::a_change_tells_what_becomes_of_its_directories,
        renames::within_and_across_directories,
        renames::what_may_replace_what,
        renames::never_into_itself,
        renames::no_replace_and_exchange,
        renames::a_whiteout_stays_under_the_old_name,
        renames::two_names_of_one_inode,
        renames::deep_trees,
        renames::unchecked_callers_need_permission,
        attrs::what_is_set_is_seen,
        attrs::what_was_written_without_a_gap_is_solid,
        attrs::a_cut_to_nothing_is_a_new_file_for_its_bytes,
        attrs::extend_counts_only_for_its_data,
        attrs::only_files_have_a_length,
        attrs::set_id_bits_go_with_the_owner,
        attrs::directories_have_times_of_their_own,
        shares::a_clone_has_the_chunks_until_it_is_written,
        shares::a_clone_is_solid_where_its_chunks_are,
        shares::chunks_go_with_the_last_that_is_read_from_them,
        shares::cut_to_nothing_a_file_shares_nothing,
        shares::so_many_lie_behind_each_other,
        shares::clones_obey_quotas_and_permissions,
        shares::clones_and_writers_at_the_same_time,
        xattrs::modes_and_limits,
        xattrs::classes_have_their_rules,
        lists::a_list_and_the_mode_go_together,
        lists::what_makes_no_sense_is_refused,
        lists::what_is_made_begins_with_the_default_list,
        lists::owners_and_root_set_lists,
        lists::a_list_is_set_once,
        directories::pages_while_entries_come_and_go,
        directories::attributes_come_with_entries,
        orphans::live_while_a_session_says_so,
        orphans::go_when_their_sessions_end,
        orphans::many_that_are_open_hide_no_others,
        orphans::sessions_outlive_an_outage,
        orphans::thousands_of_sessions,
        orphans::rounds_of_collection_go_on,
        orphans::a_request_is_done_once_by_two_metas,
        orphans::an_answer_is_final,
        orphans::changes_need_a_session,
        orphans::garbage_is_listed_and_forgotten,
        delegations::others_wait_until_it_is_returned,
        delegations::who_does_not_yield_is_fenced,
        delegations::many_are_recalled,
        delegations::what_a_session_held_goes_with_it,
        delegations::not_every_directory_is_held,
        delegations::only_what_was_meant_is_unlinked,
        locks::ranges_and_owners,
        locks::whole_files_of_flock,
        locks::go_with_their_session,
        locks::have_a_limit,
        locks::exclude_each_other,
        quotas::limits_hold,
        quotas::only_empty_directories_get_one,
        quotas::names_stay_in_their_quota,
        quotas::usage_follows_every_change,
        quotas::go_with_their_directory,
        quotas::many_at_once,
        feed::others_hear_of_every_change,
        feed::nobody_hears_of_its_own,
        feed::answers_say_of_when_they_are,
        feed::who_was_away_too_long_learns_of_a_gap,
        feed::what_nobody_can_reach_is_told_of,
        trash::what_is_removed_comes_back,
        trash::whole_branches_come_back,
        trash::what_a_rename_replaces_is_kept,
        trash::time_runs_out,
        trash::rights_are_those_of_the_directory,
    ]
}

/// The cases for bytes in the store.
fn of_contents() -> Vec<(&'static str, Case)> {
    cases![
        contents::bytes_are_written_and_read,
        contents::lengths_cut_and_grow,
        contents::a_file_goes_to_chunks_once,
        contents::only_what_was_read_goes_to_chunks,
        contents::a_reserved_name_holds_for_a_while,
        contents::they_go_with_their_file,
        contents::they_count_for_quotas,
        contents::whole_files_by_their_paths,
        contents::whole_files_need_permission,
        contents::large_ones_wait_for_chunks,
        contents::writers_of_one_file_lose_nothing,
    ]
}

fn of_objects() -> Vec<(&'static str, Case)> {
    cases![
        objects::what_is_put_is_a_file,
        objects::keys_may_begin_with_each_other,
        objects::every_key_comes_back,
        objects::expectations_hold_or_change_nothing,
        objects::of_many_that_expect_the_same_one_wins,
        objects::names_on_mounts_stay_in_order,
        objects::what_the_trash_gives_back_is_in_order,
        objects::buckets_come_and_go,
        objects::nameless_files_get_a_key,
        objects::nameless_files_get_a_name,
        objects::objects_count_for_quotas,
        objects::unchecked_callers_need_permission,
        uploads::uploads_hold_their_parts,
        uploads::parts_at_their_places_are_the_object,
        uploads::a_whole_with_loose_ends_goes,
        uploads::a_bucket_goes_with_many_uploads,
        uploads::places_are_not_far_behind_others,
        answers::answers_are_forgotten_after_hours,
        answers::a_removal_is_not_begun_again,
        uploads::places_count_for_quotas_and_need_not,
        uploads::a_part_is_replaced_where_it_is_still_there,
        objects_lists::pages_end_where_keys_do,
        objects_lists::much_that_is_no_object_ends_a_page,
        objects_lists::damage_is_found_and_put_right,
    ]
}

fn of_backing() -> Vec<(&'static str, Case)> {
    cases![
        backing::what_is_put_waits_until_it_is_done,
        backing::overwrites_wait_for_what_is_under_way,
        backing::removals_are_tombstones,
        backing::attempts_of_unknown_outcome_stay,
        backing::queues_have_lanes_and_an_order,
        backing::clean_files_go_and_come_back,
        backing::what_others_removed_may_be_made_anew,
        backing::what_mounts_do_is_followed,
        backing::transient_objects_go_with_their_time,
        backing::what_was_transient_stays_with_another_rule,
        backing::buckets_are_backed_and_not,
        backing::damage_is_found_and_put_right,
        backing::writers_and_persisters_at_the_same_time,
    ]
}

/// Runs all cases, each on a fresh store, and reports the failed ones.
async fn run_all(fixture: impl AsyncFn(&'static str) -> Fixture) {
    let mut failed = Vec::new();
    let cases = [cases(), of_contents(), of_objects(), of_backing()].concat();
    let count = cases.len();
    for (name, case) in cases {
        let fixture = fixture(name).await;
        let (after, start) = (fixture.clone(), Instant::now());
        let done = tokio::spawn(async move {
            case(fixture).await;
            after.assert_sound().await;
        });
        match done.await {
            Ok(()) => println!("{name}: ok, {} ms", start.elapsed().as_millis()),
            Err(_) => failed.push(name),
        }
    }
    assert!(failed.is_empty(), "{} of {count} cases failed: {failed:?}", failed.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_memory() {
    run_all(async |_| Fixture::in_memory().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded() {
    let folder = tempfile::tempdir().unwrap();
    run_all(async |name| {
        let path = folder.path().join(name.replace(':', "_"));
        let backend = EmbeddedBackend::open(&EmbeddedOptions::new(path)).unwrap();
        let store = Store::new(Arc::new(backend));
        Fixture::new(store.clone(), store).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd() {
    if left_out() {
        return;
    }
    let etcd = Etcd::start().await;
    let number = AtomicU32::new(0);
    run_all(async |_| {
        let prefix = format!("case{:02}/", number.fetch_add(1, Ordering::Relaxed));
        Fixture::new(etcd.store(&prefix), etcd.store(&prefix)).await
    })
    .await;
}
