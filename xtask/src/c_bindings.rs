//! Checks the bindings for C: the header is that of the sources, and programs in C and C++ call the
//! library, under Valgrind.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{self, Check, Words};
use crate::context::Context;
use crate::files;
use crate::firmware;
use crate::programs::is_quiet_success;

/// The folder of the package.
const FOLDER: &str = "bindings/c";

/// The profile of the library.
const PROFILE: &str = "c-library";

const WARNINGS: &str = "-std=c11 -Wall -Wextra -Wpedantic -Werror";
const WARNINGS_OF_CPP: &str = "-std=c++17 -Wall -Wextra -Werror";

pub(crate) fn check(context: &Context) -> Check {
    let mut test = context.cargo_test("--package portcullis-c");
    if context.bless {
        test.env("PORTCULLIS_BLESS", "1");
    }
    let mut remarks = vec![format!("sources: {}", command::run_tests(&mut test)?)];
    remarks.push(format!("host: {}", host(context)?));
    Ok(remarks.join(", "))
}

/// Builds the library for this machine, and returns its file.
fn library(context: &Context) -> Result<PathBuf, String> {
    let folder = context.target_dir("c-library");
    let mut cargo = context.cargo();
    cargo.words("rustc --package portcullis-c --lib --crate-type staticlib --profile");
    cargo.arg(PROFILE).args(context.locked());
    cargo.arg("--target-dir").arg(&folder);
    command::run(&mut cargo)?;
    Ok(folder.join(PROFILE).join("libportcullis_c.a"))
}

/// Compiles and runs the programs.
fn host(context: &Context) -> Check {
    let library = library(context)?;
    let folder = context.target_dir("c-bindings");
    files::create(&folder)?;
    let flags = flags(context, &folder, &library)?;
    let mut remarks = Vec::new();
    for source in [
        "tests/c/behaviour.c",
        "tests/c/misuse.c",
        "tests/c/compiles.cpp",
        "examples/log.c",
    ] {
        let source = context.root.join(FOLDER).join(source);
        let program = folder.join(source.file_stem().unwrap_or_default());
        let (compiler, warnings) = if files::has_extension(&source, "cpp") {
            ("c++", WARNINGS_OF_CPP)
        } else {
            ("cc", WARNINGS)
        };
        let mut compile = Command::new(compiler);
        compile.words(warnings).words("-g -O1 -o").arg(&program);
        command::run(compile.arg(&source).args(&flags).arg("-pthread"))?;
        let mut run = Command::new("valgrind");
        run.words("--quiet --error-exitcode=9 --leak-check=full");
        let lines = firmware::emulated(run.arg(&program))?;
        remarks.extend(lines.last().cloned());
    }
    remarks.push(with_cmake(context, &folder, &library)?);
    Ok(remarks.join(", "))
}

/// Returns the options with which a program finds the header and the library, as `pkg-config` says
/// them for an installed library.
fn flags(context: &Context, folder: &Path, library: &Path) -> Result<Vec<String>, String> {
    let package = context.root.join(FOLDER);
    let installed = folder.join("installed");
    for place in ["include", "lib/pkgconfig"] {
        files::create(&installed.join(place))?;
    }
    let header = "include/portcullis.h";
    files::copy(&package.join(header), &installed.join(header))?;
    files::copy(library, &installed.join("lib/libportcullis_c.a"))?;
    let described = files::read(&package.join("portcullis.pc"))?;
    let prefix = format!("prefix={}", installed.display());
    let described = described.replace("prefix=/usr/local", &prefix);
    files::write(&installed.join("lib/pkgconfig/portcullis.pc"), &described)?;
    let mut ask = Command::new("pkg-config");
    ask.words("--cflags --libs portcullis");
    ask.env("PKG_CONFIG_PATH", installed.join("lib/pkgconfig"));
    let output = ask
        .output()
        .map_err(|error| format!("pkg-config: {error}"))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(format!("pkg-config: {message}"));
    }
    let flags = String::from_utf8_lossy(&output.stdout);
    Ok(flags.split_whitespace().map(str::to_owned).collect())
}

/// Builds a program with the target that `portcullis.cmake` makes.
fn with_cmake(context: &Context, folder: &Path, library: &Path) -> Check {
    if !is_quiet_success(Command::new("cmake").arg("--version")) {
        return Ok("no CMake".to_owned());
    }
    let build = folder.join("cmake");
    files::remove(&build)?;
    let mut configure = Command::new("cmake");
    configure
        .arg("-S")
        .arg(context.root.join(FOLDER).join("tests/cmake"));
    configure.arg("-B").arg(&build);
    let mut define = OsString::from("-DPORTCULLIS_LIBRARY=");
    define.push(library);
    command::run(configure.arg(define))?;
    command::run(Command::new("cmake").arg("--build").arg(&build))?;
    command::run(&mut Command::new(build.join("uses_portcullis")))?;
    Ok("CMake".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(file: &str) -> String {
        files::read(&files::root().join(FOLDER).join(file)).unwrap()
    }

    /// Returns the cells of the rows of a table whose last cell is code, without the header.
    fn rows(text: &str, head: &str) -> Vec<Vec<String>> {
        let (_, table) = text.split_once(head).unwrap();
        let lines = table.lines().skip(2);
        let cells = |line: &str| {
            let cells = line.trim_matches('|').split('|');
            cells.map(|cell| cell.trim().to_owned()).collect()
        };
        lines
            .take_while(|line| line.starts_with('|'))
            .map(cells)
            .collect()
    }

    #[test]
    fn each_row_of_the_table_of_mistakes_is_a_test() {
        let tests = document("tests/c/misuse.c");
        let (_, main) = tests.split_once("int main(void) {").unwrap();
        let calls = main
            .lines()
            .filter_map(|line| line.trim().strip_suffix("();"));
        let calls: Vec<_> = calls.filter(|call| !call.contains(' ')).collect();
        let rows = rows(&document("README.md"), "| mistake | status | test |");
        let named: Vec<_> = rows.iter().map(|row| row[2].trim_matches('`')).collect();
        assert_eq!(
            named, calls,
            "the rows of README.md, and what misuse.c calls"
        );
        for row in rows {
            let (_, body) = tests
                .split_once(&format!(
                    "static void {}(void) {{",
                    row[2].trim_matches('`')
                ))
                .unwrap();
            let body = body.split("\n}\n").next().unwrap();
            for status in row[1].split('`').skip(1).step_by(2) {
                let status = status.trim_end_matches("...");
                assert!(body.contains(status), "{} does not test {status}", row[2]);
            }
        }
    }

    #[test]
    fn every_test_in_c_is_called() {
        for file in ["tests/c/behaviour.c", "tests/c/misuse.c"] {
            let text = document(file);
            let tests = text
                .lines()
                .filter_map(|line| line.strip_prefix("static void ")?.strip_suffix("(void) {"));
            let forgotten: Vec<_> = tests
                .filter(|test| !text.contains(&format!("\n    {test}();\n")))
                .collect();
            assert_eq!(forgotten, [""; 0], "{file}");
        }
    }
}
