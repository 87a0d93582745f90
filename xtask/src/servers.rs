//! The servers that tests start: as installed, or unpacked from Debian's packages.
//!
//! Debian's packages of servers are not installed, because their installation starts a service.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::context::Context;
use crate::debian;
use crate::programs;

/// A server that tests start, or compare with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    Caddy,
    Etcd,
    Haproxy,
    Nginx,
    Redis,
}

/// How a server is found, started and provided.
struct Facts {
    /// The program, as a shell finds it.
    name: &'static str,
    /// The program's place in its package.
    place: &'static str,
    /// Makes the program print its version and end.
    version: &'static str,
    /// The variable that tells tests the program's path.
    variable: &'static str,
    /// Debian's packages with the program. They are unpacked.
    packages: &'static [&'static str],
    /// Debian's packages with the libraries of the program, without a service. They are installed.
    libraries: &'static [&'static str],
    missing: &'static str,
}

impl Server {
    const fn facts(self) -> Facts {
        match self {
            Self::Caddy => Facts {
                name: "caddy",
                place: "usr/bin/caddy",
                version: "version",
                variable: "PORTCULLIS_CADDY",
                packages: &["caddy"],
                libraries: &[],
                missing: "missing: caddy (Debian's caddy, or its path in PORTCULLIS_CADDY)",
            },
            Self::Etcd => Facts {
                name: "etcd",
                place: "usr/bin/etcd",
                version: "--version",
                variable: "PORTCULLIS_ETCD",
                packages: &["etcd-server"],
                libraries: &[],
                missing: "missing: etcd (Debian's etcd-server, or its path in PORTCULLIS_ETCD)",
            },
            Self::Haproxy => Facts {
                name: "haproxy",
                place: "usr/sbin/haproxy",
                version: "-v",
                variable: "PORTCULLIS_HAPROXY",
                packages: &["haproxy"],
                libraries: &["libopentracing-c-wrapper0", "liblua5.3-0", "libpcre2-8-0"],
                missing: "missing: haproxy (Debian's haproxy, or its path in PORTCULLIS_HAPROXY)",
            },
            Self::Nginx => Facts {
                name: "nginx",
                place: "usr/sbin/nginx",
                version: "-v",
                variable: "PORTCULLIS_NGINX",
                packages: &["nginx"],
                libraries: &["libpcre2-8-0"],
                missing: "missing: nginx (Debian's nginx, or its path in PORTCULLIS_NGINX)",
            },
            Self::Redis => Facts {
                name: "redis-server",
                place: "usr/bin/redis-server",
                version: "--version",
                variable: "PORTCULLIS_REDIS",
                // The program is a link to one of Redis's tools.
                packages: &["redis-server", "redis-tools"],
                libraries: &["redis-tools"],
                missing: "missing: redis-server (Debian's redis-server, or its path in PORTCULLIS_REDIS)",
            },
        }
    }

    pub(crate) fn missing(self) -> &'static str {
        self.facts().missing
    }

    pub(crate) fn libraries(self) -> &'static [&'static str] {
        self.facts().libraries
    }

    /// Returns the program: the one that the environment names, or as installed, or as unpacked.
    pub(crate) fn program(self, context: &Context) -> Option<PathBuf> {
        let facts = self.facts();
        let named = env::var_os(facts.variable).map(PathBuf::from);
        // A PATH may lack the folders of system programs.
        let system = PathBuf::from("/usr/sbin").join(facts.name);
        let unpacked = self.folder(context).join(facts.place);
        let known = [PathBuf::from(facts.name), system, unpacked];
        let runs = |program: &PathBuf| {
            programs::is_quiet_success(Command::new(program).arg(facts.version))
        };
        named.into_iter().chain(known).find(runs)
    }

    /// Unpacks the program. Its libraries are installed.
    pub(crate) fn unpack(self, context: &Context) -> bool {
        let packages = self.facts().packages.iter().map(|&name| name.to_owned());
        debian::unpack(&self.folder(context), &packages.collect::<Vec<_>>())
    }

    /// Returns the variable that tells tests where the program is.
    pub(crate) fn variable(self) -> &'static str {
        self.facts().variable
    }

    fn folder(self, context: &Context) -> PathBuf {
        context.target_dir(&format!("{}-debian", self.facts().name))
    }
}
