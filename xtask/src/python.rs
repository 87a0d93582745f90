//! Checks the bindings for Python: their types are those of the module, and their tests pass. They
//! run without an installation: the package is put together in a folder.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{self, Check, Words};
use crate::context::Context;
use crate::files;
use crate::servers::Server;
use crate::setup;
use crate::wheels::Wheels;

/// The folder of the package.
const FOLDER: &str = "bindings/python";

pub(crate) fn check(context: &Context) -> Check {
    let package = package(context)?;
    let path = env::join_paths([&package, &Wheels::Python.folder(context)])
        .map_err(|error| error.to_string())?;
    let python = |words: &str| {
        let mut python = Command::new("python3");
        python.current_dir(context.root.join(FOLDER));
        python
            .env("PYTHONPATH", &path)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        python.words(words);
        python
    };
    let cache = context.target_dir("python-types");
    let mut types = python("-m mypy python/portcullis tests --cache-dir");
    command::run(types.arg(&cache).env("MYPYPATH", &package))?;
    // Compares the types with the module.
    command::run(&mut python(
        "-m mypy.stubtest portcullis --mypy-config-file pyproject.toml \
         --allowlist tests/stubtest.txt",
    ))?;
    let mut tests = python("-m pytest -p no:cacheprovider --durations=3 tests");
    setup::provide_servers(context, &[Server::Redis], &mut tests);
    command::run_tests(&mut tests)
}

/// Puts the package together, and returns the folder to import it from.
fn package(context: &Context) -> Result<PathBuf, String> {
    let mut cargo = context.cargo();
    cargo.words("build --package portcullis-python");
    command::run(cargo.args(context.locked()))?;
    let folder = context.target_dir("python");
    let package = folder.join("portcullis");
    files::remove(&folder)?;
    files::create(&package)?;
    copy_sources(
        &context.root.join(FOLDER).join("python/portcullis"),
        &package,
    )?;
    let library = context.target_dir("debug").join("lib_portcullis.so");
    files::copy(&library, &package.join("_portcullis.abi3.so"))?;
    Ok(folder)
}

fn copy_sources(from: &Path, to: &Path) -> Result<(), String> {
    for entry in fs::read_dir(from).map_err(files::at(from))? {
        let file = entry.map_err(files::at(from))?.path();
        if let Some(name) = file.file_name().filter(|_| file.is_file()) {
            files::copy(&file, &to.join(name))?;
        }
    }
    Ok(())
}

/// Builds a wheel from a source distribution alone, and imports it where it was installed.
pub(crate) fn wheel(context: &Context) -> Check {
    let folder = context.target_dir("python-wheel");
    files::remove(&folder)?;
    files::create(&folder)?;
    let maturin = |words: &str| {
        let mut maturin = Command::new(Wheels::Python.folder(context).join("bin/maturin"));
        maturin.words(words);
        maturin
    };
    let mut pack = maturin("sdist --out");
    command::run(pack.arg(&folder).current_dir(context.root.join(FOLDER)))?;
    let source = only(&folder, "gz")?;
    let mut unpack = Command::new("tar");
    unpack.words("--extract --strip-components 1 --one-top-level=source --file");
    command::run(unpack.arg(&source).current_dir(&folder))?;
    let mut build = maturin("build --release --out");
    build.arg(&folder).current_dir(folder.join("source"));
    build.env("CARGO_TARGET_DIR", folder.join("target"));
    command::run(&mut build)?;
    let wheel = only(&folder, "whl")?;
    let installed = folder.join("installed");
    let mut install = Command::new("python3");
    install
        .words("-m pip install --quiet --no-index --target")
        .arg(&installed);
    command::run(install.arg(&wheel))?;
    let mut python = Command::new("python3");
    python.current_dir(&folder).env("PYTHONPATH", &installed);
    python.args([
        "-c",
        "import portcullis; assert portcullis.TokenBucket('1/s').allow()",
    ]);
    command::run(&mut python)?;
    let name = wheel.file_name().unwrap_or_default();
    Ok(name.display().to_string())
}

/// Returns the only file of a folder with an extension.
fn only(folder: &Path, extension: &str) -> Result<PathBuf, String> {
    let entries = fs::read_dir(folder).map_err(files::at(folder))?;
    let all = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found = all.filter(|file| files::has_extension(file, extension));
    match (found.next(), found.next()) {
        (Some(file), None) => Ok(file),
        _ => Err(format!("{}: not one file .{extension}", folder.display())),
    }
}
