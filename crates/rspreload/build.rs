//! Gives the library the name under which programs are told to load it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librspreload.so.1");
}
