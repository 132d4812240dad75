//! The threads of a library in somebody else's program: how they begin, and what keeps them apart.
//!
//! * [`spawn`] starts a thread that leaves the program's signals to the program.
//! * [`biased`] is a lock that costs the thread that mostly takes it next to nothing.
//! * [`barrier`] has fences of which one side pays for both.
//! * [`futex`] is a mutex that may be held across a fork.
//! * [`fork`] has sections of code that no fork splits: [`first`] does something once, as `Once`
//!   does, and [`whole`] has locks that the child of a fork finds free.
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
pub mod fork;
pub mod futex;
mod number;
mod spawn;
pub mod whole;

pub use self::spawn::{spawn, start};
