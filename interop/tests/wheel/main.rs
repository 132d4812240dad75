//! The wheel of Python, what cargo installs, and the examples for CI and images, on a clean root.

mod ci;
mod pip;
#[path = "../install/root.rs"]
mod root;
mod source;

use interop::need::Need;

const NEEDS: [Need; 3] = [Need::Root, Need::Namespaces, Need::Program("debootstrap")];

/// What the wheel is linked with.
const LINKER: Need = Need::Wheel("bin/cargo-zigbuild");

/// A user without rights.
const NOBODY: &str = "65534";

/// What the root has beside the smallest Debian: programs of verbs, and Python with the modules
/// that a test suite has already.
const PACKAGES: &[&str] = &[
    "ibverbs-utils",
    "iproute2",
    "python3-pytest",
    "python3-pyverbs",
    "python3-venv",
    "python3-yaml",
];
