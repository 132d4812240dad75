//! Tests of crate `verbs`, unchanged, with a NIC of a library: the library of this package, found
//! as any `libibverbs.so.1` is.

mod common;

#[path = "../../verbs/tests/connections.rs"]
mod connections;
#[path = "../../verbs/tests/futures.rs"]
mod futures;
#[path = "../../verbs/tests/loopback.rs"]
mod loopback;
#[path = "../../verbs/tests/provider.rs"]
mod provider;
#[path = "../../verbs/tests/receives.rs"]
mod receives;

use std::env;
use std::process::Command;

/// This program once more, in a process whose devices are those of the library. A variable of this
/// process would choose for all of its tests.
#[test]
fn the_same_tests_pass_with_a_library() {
    const ME: &str = "the_same_tests_pass_with_a_library";
    let mut again = Command::new(env::current_exe().expect("this program"));
    again.args(["--skip", ME]).env("PEERDMA_PROVIDER", common::library());
    let output = again.output().expect("this program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let ran = |name: &str| text.contains(&format!("test {name} ... ok"));
    assert!(ran("connections::a_connection_brings_private_data_each_way_and_its_qps_to_rts"));
    assert!(ran("loopback::send_arrives_in_the_posted_receive"), "{text}");
    assert!(ran("futures::messages_arrive_one_by_one"), "{text}");
    assert!(ran("provider::the_device_is_of_the_provider_that_was_chosen"), "{text}");
}
