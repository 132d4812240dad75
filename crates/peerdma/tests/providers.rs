//! Tests of crate `verbs`, unchanged, with a NIC of a library: the library of this package, found
//! as any `libibverbs.so.1` is.

#![expect(clippy::duplicate_mod, reason = "each file is a program of its own in crate `verbs`")]

mod common;

#[path = "../../verbs/tests/connections.rs"]
mod connections;
#[path = "../../verbs/tests/connections_async.rs"]
mod connections_async;
#[path = "../../verbs/tests/counted.rs"]
mod counted;
#[path = "../../verbs/tests/events.rs"]
mod events;
#[path = "../../verbs/tests/futures.rs"]
mod futures;
#[path = "../../verbs/tests/lists.rs"]
mod lists;
#[path = "../../verbs/tests/loopback.rs"]
mod loopback;
#[path = "../../verbs/tests/provider.rs"]
mod provider;
#[path = "../../verbs/tests/receives.rs"]
mod receives;
#[path = "../../verbs/tests/srq_async.rs"]
mod srq_async;
#[path = "../../verbs/tests/windows_async.rs"]
mod windows_async;
#[path = "../../verbs/tests/xrc.rs"]
mod xrc;
#[path = "../../verbs/tests/xrc_async.rs"]
mod xrc_async;

#[test]
fn the_same_tests_pass_with_a_library() {
    let text = common::again_with_the_library("the_same_tests_pass_with_a_library");
    let ran = |name: &str| text.contains(&format!("test {name} ... ok"));
    assert!(ran("connections::a_connection_brings_private_data_each_way_and_its_qps_to_rts"));
    assert!(ran("connections_async::connections_carry_messages_and_end"), "{text}");
    assert!(ran("counted::both_sides_count_requests_or_bytes_without_completions"), "{text}");
    assert!(ran("events::a_shared_queue_says_once_that_few_receives_are_left"), "{text}");
    assert!(ran("loopback::send_arrives_in_the_posted_receive"), "{text}");
    assert!(ran("futures::messages_arrive_one_by_one"), "{text}");
    assert!(ran("lists::a_list_arrives_in_its_order_whatever_its_requests_are"), "{text}");
    assert!(ran("loopback::a_word_is_stored_at_once_and_what_was_written_before_is_flushed"));
    assert!(ran("srq_async::a_qp_that_goes_to_error_gives_what_has_arrived_and_then_the_reason"));
    assert!(ran("windows_async::the_peer_gives_a_window_back_with_a_message"), "{text}");
    assert!(ran("xrc::one_receiver_serves_the_shared_queues_that_requests_name"), "{text}");
    assert!(ran("xrc_async::each_queue_gives_the_messages_that_name_it"), "{text}");
    assert!(ran("provider::the_device_is_of_the_provider_that_was_chosen"), "{text}");
}
