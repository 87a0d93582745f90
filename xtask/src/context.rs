use std::env;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;

use crate::command::Words;
use crate::debian;
use crate::files;
use crate::programs;

/// The option that makes `bench-check` and `firmware-cost` write new baselines, and `house` write
/// shorter lists.
pub(crate) const BLESS: &str = "--bless";

/// The option before the parts of paths and descriptions that `weaken` looks for.
pub(crate) const ONLY: &str = "--only=";

/// The environment of the steps, and how they start other programs.
pub(crate) struct Context {
    pub(crate) root: PathBuf,
    /// In CI, a step that cannot run must fail.
    pub(crate) ci: bool,
    /// Whether baselines are written instead of compared.
    pub(crate) bless: bool,
    /// Parts of paths and descriptions, with commas: `weaken` tries only the mutants with one.
    pub(crate) only: String,
}

impl Context {
    pub(crate) fn new(bless: bool, only: String) -> Self {
        let root = files::root().to_owned();
        // The usual convention: set to anything but "" and "false".
        let ci = env::var("CI").is_ok_and(|value| !value.is_empty() && value != "false");
        Self {
            root,
            ci,
            bless,
            only,
        }
    }

    /// Returns the options with which another process gets the same context.
    pub(crate) fn flags(&self) -> Vec<String> {
        let bless = self.bless.then(|| BLESS.to_owned());
        let only = (!self.only.is_empty()).then(|| format!("{ONLY}{}", self.only));
        bless.into_iter().chain(only).collect()
    }

    /// Returns a folder in the target directory.
    pub(crate) fn target_dir(&self, name: &str) -> PathBuf {
        let base =
            env::var_os("CARGO_TARGET_DIR").map_or_else(|| self.root.join("target"), PathBuf::from);
        self.root.join(base).join(name)
    }

    /// In CI, a lock file that does not match the manifests is an error.
    pub(crate) fn locked(&self) -> Option<&'static str> {
        self.ci.then_some("--locked")
    }

    /// Returns the Cargo that runs this program.
    pub(crate) fn cargo(&self) -> Command {
        let mut cargo =
            Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
        cargo.current_dir(&self.root).env("PATH", programs::path());
        // As in the workspace, so that programs outside it use what was compiled in it.
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "false");
        // The bindings for Python compile for any version of it, and where there is none.
        cargo.env("PYO3_NO_PYTHON", "1");
        cargo.env("PYO3_BUILD_EXTENSION_MODULE", "1");
        self.prepare(&mut cargo);
        cargo
    }

    /// A fresh clone builds everything once: what only repeated builds use is 3 GB, and each of 300
    /// tests is linked.
    fn prepare(&self, cargo: &mut Command) {
        if !self.ci {
            return;
        }
        cargo.env("CARGO_INCREMENTAL", "0");
        if is_run_by_debian()
            && cfg!(target_arch = "x86_64")
            && let Some(linker) = self.linker()
        {
            cargo.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER", linker);
        }
    }

    /// Returns a program that links with lld, if it is installed. Debian's compiler links with the
    /// linker of GNU, which takes three times as long.
    fn linker(&self) -> Option<PathBuf> {
        let lld = debian::lld()?;
        let folder = self.target_dir("lld");
        let program = folder.join("cc");
        if !program.is_file() {
            fs::create_dir_all(&folder).ok()?;
            let _ = symlink(lld, folder.join("ld.lld"));
            // Another process may do the same, and use it already.
            let new = folder.join(format!("cc-{}", std::process::id()));
            let script = "#!/bin/sh\nexec cc -fuse-ld=lld -B\"$(dirname \"$0\")\" \"$@\"\n";
            fs::write(&new, script).ok()?;
            fs::set_permissions(&new, Permissions::from_mode(0o755)).ok()?;
            fs::rename(&new, &program).ok()?;
        }
        Some(program)
    }

    /// Returns a subcommand of Debian's Cargo. It is called by its own name, because Cargo would
    /// look for it among those of rustup first.
    pub(crate) fn debian_component(&self, subcommand: &str) -> Command {
        let mut component = self.debian(&format!("/usr/bin/cargo-{subcommand}"));
        component.arg(subcommand);
        component
    }

    /// Returns Debian's Cargo.
    pub(crate) fn debian_cargo(&self) -> Command {
        self.debian("/usr/bin/cargo")
    }

    /// Returns a command for a program of Debian's toolchain. If another toolchain runs this
    /// program, it has a target directory of its own.
    fn debian(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = env::var_os("PATH").unwrap_or_default();
        let first = ["/usr/bin", "/bin"].map(PathBuf::from);
        if let Ok(path) = env::join_paths(first.into_iter().chain(env::split_paths(&path))) {
            command.env("PATH", path);
        }
        command
            .env("CARGO", "/usr/bin/cargo")
            .env("RUSTC", "/usr/bin/rustc");
        // What one compiler has built, another one cannot use.
        if !is_run_by_debian() {
            command.env("CARGO_TARGET_DIR", self.target_dir("debian"));
        }
        self.prepare(&mut command);
        // Removes the variables that the running Cargo has set for its own compiler.
        for name in ["LD_LIBRARY_PATH", "RUSTUP_TOOLCHAIN"] {
            command.env_remove(name);
        }
        command.current_dir(&self.root);
        command
    }

    /// Returns `cargo test` with the words of `arguments`.
    pub(crate) fn cargo_test(&self, arguments: &str) -> Command {
        let mut cargo = self.cargo();
        cargo.arg("test").args(self.locked()).arg("--no-fail-fast");
        cargo.words(arguments);
        cargo
    }
}

/// Whether Debian's Cargo runs this program.
fn is_run_by_debian() -> bool {
    env::var_os("CARGO").is_some_and(|cargo| cargo == "/usr/bin/cargo")
}
