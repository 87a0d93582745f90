use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment of the steps, and how they start other programs.
pub(crate) struct Context {
    pub(crate) root: PathBuf,
    /// In CI, a step that cannot run must fail.
    pub(crate) ci: bool,
    /// Whether baselines are written instead of compared.
    pub(crate) bless: bool,
    /// A part of a path: `weaken` tries only the mutants of files with it.
    pub(crate) only: String,
}

impl Context {
    pub(crate) fn new(bless: bool, only: String) -> Self {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = package.parent().unwrap_or(package).to_owned();
        // The usual convention: set to anything but "" and "false".
        let ci = env::var("CI").is_ok_and(|value| !value.is_empty() && value != "false");
        Self {
            root,
            ci,
            bless,
            only,
        }
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
        cargo.current_dir(&self.root);
        // A fresh clone builds everything once. What only repeated builds use is 3 GB.
        if self.ci {
            cargo.env("CARGO_INCREMENTAL", "0");
        }
        cargo
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

    /// Returns a command for a program of Debian's toolchain, with a target directory of its own.
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
        command.env("CARGO_TARGET_DIR", self.target_dir("debian"));
        // Removes the variables that the running Cargo has set for its own compiler.
        for name in ["LD_LIBRARY_PATH", "RUSTUP_TOOLCHAIN"] {
            command.env_remove(name);
        }
        command.current_dir(&self.root);
        command
    }

    pub(crate) fn cargo_test(&self) -> Command {
        let mut cargo = self.cargo();
        cargo.arg("test").args(self.locked()).arg("--no-fail-fast");
        cargo
    }
}
