//! Acts as another user, in a thread of this process.

use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

use crate::engine::Engine;
use crate::nic::NicInfo;

/// Runs `body` as a user other than root. Only root can do this.
pub(crate) fn as_another_user<R: Send>(body: impl FnOnce() -> R + Send) -> R {
    let run = || {
        let other = Uid::from_raw(61000);
        // Only for this thread, which ends here.
        set_thread_res_uid(other, other, other).expect("root may");
        body()
    };
    std::thread::scope(|scope| scope.spawn(run).join().expect("no panic"))
}

/// An engine of another user, which has begun to connect to a VF.
pub(crate) fn stranger(nic: &NicInfo, vf: u16) -> Engine {
    as_another_user(|| {
        let mut engine = super::engine(nic);
        engine.common.out.shm.prepare(vf);
        engine
    })
}

/// Whether this process can act as another user. Where everything must run, it must be able to.
pub(crate) fn is_root() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        assert!(std::env::var_os("PEERDMA_REQUIRE").is_none(), "cannot run: not root");
        eprintln!("SKIPPED: only root can act as another user");
    }
    is_root
}
