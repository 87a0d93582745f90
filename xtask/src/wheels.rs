//! Packages of Python's registry that tests need: pinned by version and checksum, in a folder of
//! their own below `target`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::command::Words;
use crate::context::Context;
use crate::programs::{is_quiet_success, succeeds};

/// A list of packages, and where they are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wheels {
    /// A client of gRPC and Envoy's messages, with which a test asks as Envoy does.
    Grpc,
    /// Proxies that Debian lacks.
    Proxies,
    /// What the bindings for Python are tested and packed with.
    Python,
}

impl Wheels {
    pub(crate) fn missing(self) -> &'static str {
        match self {
            Self::Grpc => "missing: pip for Python 3, for the packages in xtask/grpc.txt",
            Self::Proxies => "missing: pip for Python 3, for the packages in xtask/proxies.txt",
            Self::Python => {
                "missing: pip for Python 3.10 or later, for the packages in xtask/python.txt"
            }
        }
    }

    fn list(self) -> &'static str {
        match self {
            Self::Grpc => "xtask/grpc.txt",
            Self::Proxies => "xtask/proxies.txt",
            Self::Python => "xtask/python.txt",
        }
    }

    /// What the tests use of the packages: a variable for each, and the path in the folder.
    fn used(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Grpc => &[("PORTCULLIS_GRPC_PACKAGES", "")],
            Self::Proxies => &[
                ("PORTCULLIS_ENVOY", "envoy/_bin/envoy"),
                ("PORTCULLIS_TRAEFIK", "bin/traefik"),
            ],
            Self::Python => &[],
        }
    }

    pub(crate) fn is_there(self, context: &Context) -> bool {
        let read = |path: PathBuf| fs::read(path).ok();
        let wanted = read(context.root.join(self.list()));
        if wanted.is_none() || read(self.installed(context)) != wanted {
            return false;
        }
        match self {
            // Their machine code is for one version of Python.
            Self::Grpc => self.imports(context, "grpc, envoy.service.ratelimit.v3.rls_pb2_grpc"),
            Self::Python => self.imports(context, "pytest, mypy.api, uvloop"),
            Self::Proxies => true,
        }
    }

    fn imports(self, context: &Context, modules: &str) -> bool {
        let mut python = Command::new("python3");
        python.arg("-c").arg(format!("import {modules}"));
        is_quiet_success(python.env("PYTHONPATH", self.folder(context)))
    }

    /// Installs the packages, which takes seconds.
    pub(crate) fn install(self, context: &Context) -> bool {
        let (list, folder) = (context.root.join(self.list()), self.folder(context));
        // `pip` leaves what an earlier version had.
        _ = fs::remove_dir_all(&folder);
        let mut pip = Command::new("python3");
        pip.words("-m pip install --quiet --no-deps --only-binary :all:");
        pip.words("--disable-pip-version-check --require-hashes --requirement");
        pip.arg(&list).arg("--target").arg(&folder);
        pip.env("PIP_ROOT_USER_ACTION", "ignore");
        succeeds(&mut pip) && fs::copy(&list, self.installed(context)).is_ok()
    }

    /// Returns the variables that tell tests where the packages are.
    pub(crate) fn places(self, context: &Context) -> Vec<(&'static str, PathBuf)> {
        let folder = self.folder(context);
        let place = |&(variable, path)| (variable, folder.join(path));
        self.used().iter().map(place).collect()
    }

    pub(crate) fn folder(self, context: &Context) -> PathBuf {
        context.target_dir(match self {
            Self::Grpc => "grpc-python",
            Self::Proxies => "proxies",
            Self::Python => "python-tools",
        })
    }

    /// A copy of the list that was installed.
    fn installed(self, context: &Context) -> PathBuf {
        self.folder(context).join("installed.txt")
    }
}
