//! An archive and a Debian package, on a clean root: a Debian that has nothing of this machine.

mod root;

use interop::need::Need;
use interop::{Scratch, dist, needs};

use crate::root::Root;

const NEEDS: [Need; 3] = [Need::Root, Need::Namespaces, Need::Program("debootstrap")];

/// What the root has beside the smallest Debian.
const PACKAGES: &[&str] = &["ibverbs-utils"];

/// A user without rights.
const NOBODY: &str = "65534";

/// Two programs that a shell with our variables starts. `wait` has the status of the first; the
/// second tries until the first listens.
const PINGPONG: &str = "eval \"$(peerdma env)\"
    ibv_rc_pingpong -g 0 -n 100 -c &
    for i in $(seq 100); do ibv_rc_pingpong -g 0 -n 100 -c 127.0.0.1 && break; sleep 0.1; done
    wait $!";

#[test]
fn a_debian_package_is_all_that_a_clean_machine_needs() {
    needs!(NEEDS[0], NEEDS[1], NEEDS[2]);
    let scratch = Scratch::new();
    let root = Root::new(&scratch);
    let package = root.give(&dist(&scratch.file("dist"), &["--only=package"], ".deb"));
    root.run(&format!("dpkg -i {package}")).success();
    // A user who may write nothing beside the libraries.
    let nobody = format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups");
    let demo = root.run(&format!("{nobody} peerdma demo"));
    demo.success().says("bytes");
    root.run(&format!("{nobody} peerdma run -- ibv_devinfo")).success().says("PORT_ACTIVE");
    root.run(PINGPONG).success().says("100 iters");
    // No program that was not started by it is told of our library.
    root.run("ibv_devices || true").success().never_says("peerdma");
    let pages = "ls /usr/share/man/man1/peerdma-run.1* /usr/share/doc/peerdma/copyright \
                 /usr/share/bash-completion/completions/peerdma";
    root.run(pages).success();
    root.run("dpkg -r peerdma && ! ls -d /usr/lib/peerdma /usr/bin/peerdma").success();
}

#[test]
fn an_archive_runs_wherever_it_is_unpacked() {
    needs!(NEEDS[0], NEEDS[1], NEEDS[2]);
    let scratch = Scratch::new();
    let root = Root::new(&scratch);
    let archive = root.give(&dist(&scratch.file("dist"), &["--only=archive"], ".tar.gz"));
    let script = format!(
        "mkdir /home/me && chown {NOBODY} /home/me && cd /home/me && \
         setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups sh -ec '\
           tar -xzf {archive} --strip-components=1; \
           bin/peerdma demo; \
           bin/peerdma run -- ibv_devinfo; \
           bin/peerdma run --gpu=nvidia -- ls /dev/null'"
    );
    root.run(&script).success().says("PORT_ACTIVE");
}
