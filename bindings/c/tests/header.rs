//! The committed header is what cbindgen makes of the sources.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use cbindgen::{Builder, Config};

const HEADER: &str = "include/portcullis.h";

/// Set by `cargo xtask c-bindings --bless`: the header is written instead of compared.
const BLESS: &str = "PORTCULLIS_BLESS";

/// Returns the source of the library with all macros expanded: cbindgen reads no macros.
fn expanded(package: &Path) -> String {
    let target = env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| package.join("../../target"), Into::into);
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(package)
        .args(["rustc", "--lib", "--quiet", "--target-dir"])
        .arg(target.join("expanded"))
        .args(["--", "-Zunpretty=expanded"])
        // The compiler can print expanded sources only as an unstable feature.
        .env("RUSTC_BOOTSTRAP", "portcullis_c");
    let output = cargo.output().expect("cargo runs");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_header_is_that_of_the_sources() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("portcullis_c.rs");
    fs::write(&source, expanded(package)).expect("the target folder");
    let config = Config::from_file(package.join("cbindgen.toml")).expect("the settings");
    let builder = Builder::new().with_config(config).with_src(&source);
    let mut header = Vec::new();
    builder.generate().expect("a header").write(&mut header);
    let header = String::from_utf8(header).expect("text");
    let file = package.join(HEADER);
    if env::var_os(BLESS).is_some() {
        fs::write(&file, header).expect("the header can be written");
        return;
    }
    let committed = fs::read_to_string(&file).unwrap_or_default();
    for (line, (made, committed)) in header.lines().zip(committed.lines()).enumerate() {
        let line = line + 1;
        assert_eq!(
            committed, made,
            "{HEADER}:{line} is stale: run `cargo xtask c-bindings --bless`"
        );
    }
    assert_eq!(
        committed, header,
        "{HEADER} is stale: run `cargo xtask c-bindings --bless`"
    );
}
