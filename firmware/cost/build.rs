//! Tells the linker where the board's memory layout is, and the compiler what to measure: the
//! variable `SUBJECT` names it.

fn main() {
    println!(
        "cargo::rustc-link-search={}",
        std::env::var("CARGO_MANIFEST_DIR").unwrap()
    );
    println!("cargo::rerun-if-changed=memory.x");
    println!("cargo::rerun-if-env-changed=SUBJECT");
    println!("cargo::rustc-check-cfg=cfg(subject, values(any()))");
    println!("cargo::rustc-check-cfg=cfg(in_c)");
    let subject = std::env::var("SUBJECT").unwrap_or_else(|_| "nothing".to_owned());
    println!("cargo::rustc-cfg=subject=\"{subject}\"");
    if subject.starts_with("c-") {
        println!("cargo::rustc-cfg=in_c");
    }
}
