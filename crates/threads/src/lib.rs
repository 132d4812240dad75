//! The threads of a library in somebody else's program: how they begin, and what keeps them apart.
//!
//! * [`spawn`] starts a thread that leaves the program's signals to the program.
//! * [`biased`] is a lock that costs the thread that mostly takes it next to nothing.
//! * [`barrier`] has fences of which one side pays for both.
//! * [`first`] does something once, as `Once` does, and a fork does not split it.
//! * [`waiters`] makes locks whole that came through a fork.
//!
//! What it does not do: it knows nothing of memory, sockets or devices, and starts no thread of its
//! own but the one that asks the kernel for fences ([`barrier::prepare`]).
//!
//! ```
//! let counter = std::sync::Arc::new(threads::biased::Mutex::new(0));
//! let shared = counter.clone();
//! let thread = threads::spawn("adder", move || *shared.lock() += 1)?;
//! thread.join().expect("no panic");
//! assert_eq!(*counter.lock(), 1);
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod barrier;
pub mod biased;
pub mod first;
mod number;
mod spawn;
#[cfg(not(loom))]
pub mod waiters;

pub use self::spawn::{spawn, start};
