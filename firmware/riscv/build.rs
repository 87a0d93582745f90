//! Tells the linker where the board's memory layout is.

fn main() {
    println!(
        "cargo::rustc-link-search={}",
        std::env::var("CARGO_MANIFEST_DIR").unwrap()
    );
    println!("cargo::rerun-if-changed=memory.x");
}
