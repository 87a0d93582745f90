//! The packages of Python with which a test asks as Envoy does: a client of gRPC, and messages that
//! others made of Envoy's public `.proto` files.

use std::path::PathBuf;
use std::process::Command;

use crate::command::Words;
use crate::context::Context;
use crate::programs::{is_quiet_success, succeeds};

/// The variable that tells the test the folder of the packages.
const VARIABLE: &str = "PORTCULLIS_GRPC_PACKAGES";

/// Provides the packages, if that works, and tells the tests where they are.
pub(crate) fn provide(context: &Context, tests: &mut Command) {
    if is_there(context) || install(context) {
        tests.env(VARIABLE, folder(context));
    }
}

fn is_there(context: &Context) -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", "import grpc, envoy.service.ratelimit.v3.rls_pb2_grpc"]);
    is_quiet_success(python.env("PYTHONPATH", folder(context)))
}

/// Installs the pinned packages, which takes seconds.
fn install(context: &Context) -> bool {
    let mut pip = Command::new("python3");
    pip.words("-m pip install --quiet --no-deps --only-binary :all:");
    pip.words("--disable-pip-version-check --require-hashes --requirement");
    pip.arg(context.root.join("xtask/grpc.txt"));
    pip.env("PIP_ROOT_USER_ACTION", "ignore");
    succeeds(pip.arg("--upgrade").arg("--target").arg(folder(context)))
}

fn folder(context: &Context) -> PathBuf {
    context.target_dir("grpc-python")
}
