//! Debian's packages and programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs::{is_quiet_success, output, succeeds};

/// Returns the newest linker of LLVM among Debian's programs.
pub(crate) fn lld() -> Option<PathBuf> {
    let version = |path: &PathBuf| {
        path.to_str()?
            .strip_prefix("/usr/bin/ld.lld-")?
            .parse::<u32>()
            .ok()
    };
    let programs = Path::new("/usr/bin").read_dir().ok()?.flatten();
    programs
        .map(|entry| entry.path())
        .filter(|path| version(path).is_some())
        .max_by_key(version)
}

/// Installs Debian's `packages`, as root or with sudo if it needs no password. Without packages, it
/// only updates the lists of packages.
pub(crate) fn install(packages: &[&str]) -> bool {
    if !is_quiet_success(Command::new("apt-get").arg("--version")) {
        return false;
    }
    let is_root = output("id", &["-u"]).is_some_and(|id| id.trim() == "0");
    if !is_root && !is_quiet_success(Command::new("sudo").args(["--non-interactive", "true"])) {
        return false;
    }
    let apt_get = |arguments: &[&str]| {
        let mut command = Command::new(if is_root { "env" } else { "sudo" });
        if !is_root {
            command.args(["--non-interactive", "env"]);
        }
        command
            .args([
                "DEBIAN_FRONTEND=noninteractive",
                "apt-get",
                "--quiet",
                "--yes",
                // Another program may be installing packages: it is waited for.
                "--option=DPkg::Lock::Timeout=600",
            ])
            .args(arguments);
        succeeds(&mut command)
    };
    let install = || apt_get(&[&["install", "--no-install-recommends"], packages].concat());
    apt_get(&["update"]) && (packages.is_empty() || install())
}

/// Unpacks Debian's `packages` into a folder, which has nothing else. The lists of packages are up
/// to date.
pub(crate) fn unpack(folder: &Path, packages: &[String]) -> bool {
    // Packages of another version must not be mixed with these.
    if folder.exists() && fs::remove_dir_all(folder).is_err() {
        return false;
    }
    if fs::create_dir_all(folder).is_err() {
        return false;
    }
    let mut download = Command::new("apt-get");
    download.args(["--quiet", "download"]).current_dir(folder);
    let files = || {
        let files = folder.read_dir().into_iter().flatten().flatten();
        files
            .map(|file| file.path())
            .filter(|file| file.extension().is_some_and(|kind| kind == "deb"))
    };
    let extract = |package: PathBuf| {
        let mut dpkg = Command::new("dpkg-deb");
        succeeds(dpkg.arg("--extract").arg(package).arg(folder))
    };
    succeeds(download.args(packages)) && files().all(extract)
}
