//! Fault plans: what goes wrong, when, and for which packets.
//!
//! Healthy hardware never shows a program the errors that it must be able to handle. A plan is a
//! file of rules, each a fault and the conditions under which it happens:
//!
//! ```toml
//! seed = 7
//!
//! [[fault]]
//! name = "lose a READ response now and then"
//! do = "drop"
//! opcode = "read-response"
//! probability = 0.01
//!
//! [[fault]]
//! do = "port-down"
//! from = "2s"
//! for = "3s"
//! ```
//!
//! [`Plan`] is the file, checked as a whole when it is read: a misspelt key or a condition that an
//! action cannot have is an error with the rule's number. [`Injector`] is a plan at work on one NIC
//! of one process. It gets every packet and the time, and returns a [`Verdict`] on the packet;
//! actions on objects are returned separately, each as a [`Strike`]. It moves no bytes itself, so
//! the same plan runs over a device and over a simulator.
//!
//! [`Weather`] is the same for the GPUs of a process: rules of GPUs that the time or functions of a
//! runtime trigger. A NIC's injector returns actions that packets trigger as [`Strike::Gpu`].
//!
//! Nothing here is random: whether a rule with a probability fires is a function of the seed, the
//! rule, the QP (by its order of creation) and how many packets of that QP met the rule's
//! conditions before. When it runs again, the same packets are hit, however the packets of the QPs
//! interleave.

mod gpu;
mod injector;
mod plan;
mod quantity;
mod report;
mod weather;

pub use gpu::{Domain, GpuAct, GpuStrike, Operations};
pub use injector::{Injector, Packet, Strike, Verdict};
pub use plan::{Action, Plan, PlanError, Rule, Way, Who};
pub use quantity::{Every, Span};
pub use report::Fired;
pub use weather::Weather;
