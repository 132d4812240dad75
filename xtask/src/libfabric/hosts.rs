//! The two ends of a test, on one host or two.

use std::process::Command;

use crate::sh::Outcome;
use crate::suites::host;

/// Where the servers are.
pub(crate) const NEAR: &str = "10.77.9.1";
/// The other host, where there is one.
pub(crate) const FAR: &str = "10.77.9.2";

/// Makes the other end of the host's wire another host, which lasts as long as the command.
const OTHER_HOST: &str = "\
set -e
unshare --net sleep infinity &
export FABTESTS_FAR_PID=$!
trap 'kill $FABTESTS_FAR_PID' EXIT
trap 'exit 1' HUP INT TERM
until [ $(readlink /proc/$FABTESTS_FAR_PID/ns/net) != $(readlink /proc/self/ns/net) ]; do
    kill -0 $FABTESTS_FAR_PID
done
ip link set far0 netns $FABTESTS_FAR_PID
nsenter --net --target=$FABTESTS_FAR_PID sh -ec '
    ip link set lo up
    ip link set far0 name eth0
    ip addr add '$FABTESTS_FAR'/24 dev eth0
    ip link set eth0 up
'
\"$0\" \"$@\"
";

/// A command line that runs the one after it where both ends can be reached.
pub(crate) fn of_their_own(are_two: bool) -> Outcome<Command> {
    let mut command = host::of_its_own(false)?;
    if are_two {
        command.args(["sh", "-c", OTHER_HOST]).env("FABTESTS_FAR", FAR);
    }
    Ok(command)
}
