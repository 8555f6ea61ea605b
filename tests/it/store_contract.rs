//! The contract of `Store`, run over every implementation. A store joins with a function in `support::stores` that opens
//! an empty one, and a line at the end of this file.

mod claims;
mod listing;
mod open;
mod retention;
mod writes;

/// Every case, a test of its own over a store that `support::stores` opens for it.
macro_rules! each {
    ($store:ident: $($suite:ident::$case:ident)*) => {
        $(
            #[tokio::test]
            async fn $case() {
                let rig = crate::support::stores::$store().await;
                super::$suite::$case(&*rig.store).await;
            }
        )*
    };
}

/// All cases in one test over servers that take long to start, each case in a namespace of its own.
macro_rules! in_turn {
    ($fleet:ident: $($suite:ident::$case:ident)*) => {
        #[tokio::test]
        async fn keeps_the_contract() {
            let fleet = crate::support::redis_fleet::$fleet::start();
            $(
                let store = crate::support::stores::on(&fleet.url(), stringify!($case)).await;
                super::$suite::$case(&store).await;
            )*
        }
    };
}

/// A function that tries the cases in turn, each over the store that `open` gives for it, and names the first to fail.
macro_rules! tried {
    ($name:ident: $($suite:ident::$case:ident)*) => {
        pub async fn $name(
            open: impl AsyncFn(&'static str) -> Option<oncegate::store::redis::RedisStore>,
        ) -> Option<&'static str> {
            $(
                let Some(store) = open(stringify!($case)).await else { return Some(stringify!($case)) };
                let trial = tokio::spawn(async move { super::$suite::$case(&store).await });
                if trial.await.is_err() {
                    return Some(stringify!($case));
                }
            )*
            None
        }
    };
}

macro_rules! keeps_the_contract {
    ($module:ident by $how:ident $store:ident) => {
        pub mod $module {
            $how! { $store:
                claims::of_many_claims_one_wins
                claims::a_claim_sent_again_is_won
                claims::a_key_with_an_end_answers_with_its_receipt
                claims::keys_of_odd_bytes_stay_apart
                claims::an_unresolved_call_stops_its_alike
                claims::a_running_call_does_not_stop_its_alike
                claims::a_call_whose_lease_is_over_stops_its_alike
                claims::a_call_that_moved_on_lets_its_alike_pass
                claims::an_alike_is_the_same_call_within_its_window_only
                claims::of_two_unresolved_calls_the_end_of_one_frees_nothing
                claims::a_vanished_call_stops_nobody
                writes::a_write_sent_again_is_applied_once
                writes::any_part_of_a_stale_fence_is_refused
                writes::of_two_writers_one_is_refused
                writes::there_is_nothing_to_write_without_a_record
                writes::the_request_lives_until_the_answer
                writes::events_are_one_for_each_change_and_in_order
                writes::a_long_history_keeps_its_begin_and_its_newest_events
                writes::bodies_come_back_byte_for_byte
                retention::a_receipt_ends_before_its_tombstone
                retention::a_record_that_ended_leaves_nothing
                retention::a_new_run_takes_the_end_of_life_away
                retention::what_is_over_leaves_nothing
                retention::purging_leaves_what_lives
                open::what_is_unfinished_is_counted_until_it_ends
                open::a_new_run_counts_again
                open::scopes_are_counted_apart
                listing::due_are_lapsed_leases_only
                listing::what_is_due_moves_with_the_lease
                listing::pages_run_from_the_newest_to_the_oldest
                listing::dead_letters_are_listed_while_they_are_open
                listing::dead_letters_come_page_by_page
                listing::a_cursor_of_nobody_is_refused
                listing::a_note_gives_back_what_was_there
                listing::a_store_that_takes_writes_says_so
                listing::a_name_is_held_for_the_longest_time_that_was_said
                listing::of_many_who_want_a_name_one_gets_it
                listing::a_rate_is_taken_together_and_says_how_long_to_wait
                listing::what_one_rate_refuses_takes_nothing_from_another
            }
        }
    };
}

keeps_the_contract!(memory by each memory);
keeps_the_contract!(file by each file);
keeps_the_contract!(redis by each redis);
keeps_the_contract!(sentinel by in_turn SentinelFleet);
keeps_the_contract!(cluster by in_turn ClusterFleet);
keeps_the_contract!(rights by tried first_failure);
