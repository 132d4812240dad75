//! The files of `dist/` for CI and images. The steps are run by `interop/py/ci_files.py`, which
//! does what the services and builders do with them; the root has the packages that they fetch.

use interop::{Scratch, dist, needs, workspace};

use crate::pip::{as_user, wheel};
use crate::root::Root;
use crate::{LINKER, NEEDS};

/// Runs a file of `dist/` in a root that has it, and what runs it.
const RUN: &str = "python3 /ci_files.py";

fn with_files(scratch: &Scratch, files: &[&str]) -> Root {
    let root = Root::new(scratch);
    for file in ["interop/py/ci_files.py", "interop/py/container.py"].iter().chain(files) {
        root.give(&workspace().join(file));
    }
    root
}

#[test]
fn a_ci_action_gives_rdma_to_the_steps_that_follow() {
    needs!(NEEDS[0], NEEDS[1], NEEDS[2], LINKER);
    let scratch = Scratch::new();
    let root = with_files(&scratch, &["dist/action/action.yml"]);
    let wheel = root.give(wheel());
    let plain = as_user(&format!("{RUN} action /action.yml source={wheel} -- ibv_devinfo"));
    root.run(&plain).success().says("PORT_ACTIVE");
    let gpu = as_user(&format!(
        "{RUN} action /action.yml source={wheel} options=\"--gpu=nvidia --nic=peerdma1\" -- \
         \"ibv_devices; echo \\$LD_LIBRARY_PATH\""
    ));
    root.run(&gpu).success().says("libpeerdma-cuda.names").says("peerdma1").never_says("peerdma0");
    let missing = as_user(&format!("{RUN} action /action.yml source=/no.whl -- ibv_devinfo"));
    root.run(&missing).failure().never_says("PORT_ACTIVE");
}

#[test]
fn a_job_of_gitlab_extends_a_template() {
    needs!(NEEDS[0], NEEDS[1], NEEDS[2], LINKER);
    let scratch = Scratch::new();
    let root = with_files(&scratch, &["dist/gitlab-ci.yml"]);
    let wheel = root.give(wheel());
    let job = as_user(&format!("{RUN} gitlab /gitlab-ci.yml PEERDMA_WHEEL={wheel} -- ibv_devinfo"));
    root.run(&job).success().says("PORT_ACTIVE");
}

/// The programs of the images have no rights, and the system calls that an engine leaves them.
#[test]
fn images_need_neither_rights_nor_a_profile_of_their_own() {
    needs!(NEEDS[0], NEEDS[1], NEEDS[2], LINKER);
    let scratch = Scratch::new();
    let root = with_files(
        &scratch,
        &["dist/Containerfile.wheel", "dist/Containerfile.deb", "interop/py/test_wheel.py"],
    );
    let package = root.give(&dist(&scratch.file("dist"), &["--only=package"], ".deb"));
    let wheel = root.give(wheel());
    let image = |file: &str, argument: &str, name: &str| {
        let name = name.trim_start_matches('/');
        format!("{RUN} image /Containerfile.{file} {argument}={name} -- python3 /container.py")
    };
    root.run(&image("deb", "PACKAGE", &package)).success().says("PORT_ACTIVE");
    // What the file says is what is printed there.
    let printed = "peerdma env --format dockerfile > /printed && grep -c . /printed && \
                   ! grep --fixed-strings --line-regexp --invert-match \
                   --file /Containerfile.deb /printed";
    root.run(printed).success();
    let suite = "cp /test_wheel.py /tmp/ && chmod 777 /tmp && export HOSTS=together && ";
    root.run(&format!("{suite}{}", image("wheel", "WHEEL", &wheel)))
        .success()
        .says("test_wheel.py")
        .says("passed")
        .never_says("failed");
}
