//! The packages of Python with which a test asks as Envoy does: a client of gRPC, and messages that
//! others made of Envoy's public `.proto` files.

use std::path::PathBuf;
use std::process::Command;

use crate::command::Words;
use crate::context::Context;
use crate::programs::{is_quiet_success, succeeds};

/// The variable that tells the test the folder of the packages.
pub(crate) const VARIABLE: &str = "PORTCULLIS_GRPC_PACKAGES";

pub(crate) fn is_there(context: &Context) -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", "import grpc, envoy.service.ratelimit.v3.rls_pb2_grpc"]);
    is_quiet_success(python.env("PYTHONPATH", folder(context)))
}

/// Installs the pinned packages, which takes seconds.
pub(crate) fn install(context: &Context) -> bool {
    let mut pip = Command::new("python3");
    pip.words("-m pip install --quiet --no-deps --only-binary :all:");
    pip.words("--disable-pip-version-check --require-hashes --requirement");
    pip.arg(context.root.join("xtask/grpc.txt"));
    pip.env("PIP_ROOT_USER_ACTION", "ignore");
    succeeds(pip.arg("--upgrade").arg("--target").arg(folder(context)))
}

pub(crate) fn folder(context: &Context) -> PathBuf {
    context.target_dir("grpc-python")
}
