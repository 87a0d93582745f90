//! Policies: rules from text or a file, which decide requests of HTTP.
//!
//! ```text
//!   text --read, checked--> Policy --first request of a process--> Judge: the limits of its rules
//!                              |                                     |
//!                              +-- reload: text, checked ----------> + the limits go on
//! ```
//!
//! Invariant: the text was checked, and is that of the rules in force. A process that was forked
//! makes its own limits from it, which are full.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use http::header::HeaderName;
use portcullis_policy::Policy as Rules;
use portcullis_tower::fields::{Generation, ResetForm};
use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::acquire::{Acquire, Asked, Awaiting, Given};
use crate::forked::PerProcess;
use crate::judge::{Judge, Manner, Told};
use crate::number::{seconds_of, whole_u32};
use crate::outcome::{Outcome, Wait};
use crate::request::{Parts, networks};
use crate::store::NamedStores;

/// The form of a text.
#[derive(Clone, Copy)]
enum Form {
    Toml,
    Json,
}

/// Where a text is from.
#[derive(Clone)]
enum Source {
    Text,
    File(PathBuf),
}

impl Source {
    /// The name in messages.
    fn name(&self) -> String {
        match self {
            Self::Text => "policy".to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }
}

/// Rules that decide requests of HTTP, from a text in TOML or JSON: see the guide to policy files.
///
/// Made by `from_toml`, `from_json` or `from_file`. All of them take:
///
/// `stores`: the stores that rules name with `store`.
///
/// `fields`: the header fields that state limits: 'draft-11', 'draft-7', 'draft-6', 'x' for those
/// of `X-RateLimit`, or None.
///
/// `trusted`: the networks of proxies, whose field `forwarded` names the client; 'unix' trusts the
/// peers of a Unix socket. Without any, the client is the peer.
///
/// `timeout`: how many seconds a request waits at most, for a rule with a queue. None: until its
/// turn comes.
#[pyclass(frozen, module = "portcullis")]
pub(crate) struct Policy {
    source: Source,
    form: Form,
    text: Mutex<Arc<str>>,
    stores: NamedStores,
    manner: Manner,
    judge: PerProcess<Judge>,
}

/// What each decision has as its line in an event loop. Requests of a policy have no common order.
static LINES: AtomicU64 = AtomicU64::new(0);

/// The arguments that all constructors have.
struct Arguments<'a, 'py> {
    stores: Option<&'a Bound<'py, PyDict>>,
    fields: Option<&'a str>,
    trusted: Option<&'a Bound<'py, PyAny>>,
    forwarded: &'a str,
    timeout: Option<f64>,
}

impl Arguments<'_, '_> {
    fn manner(&self) -> PyResult<Manner> {
        let trusted = self.trusted.map(networks).transpose()?;
        let (trusted, trusts_unix) = trusted.unwrap_or_default();
        let forwarded = HeaderName::from_bytes(self.forwarded.as_bytes());
        let forwarded = forwarded
            .map_err(|_| PyValueError::new_err("forwarded must be the name of a header field"))?;
        Ok(Manner {
            fields: generation(self.fields)?,
            trusted,
            trusts_unix,
            forwarded,
            timeout: seconds_of(self.timeout, "timeout")?,
        })
    }
}

fn generation(name: Option<&str>) -> PyResult<Generation> {
    Ok(match name {
        None => Generation::Off,
        Some("draft-11") => Generation::Draft11,
        Some("draft-7") => Generation::Draft7,
        Some("draft-6") => Generation::Draft6,
        Some("x") => Generation::X(ResetForm::Seconds),
        Some(other) => {
            return Err(PyValueError::new_err(format!(
                "fields: {other:?} is not 'draft-11', 'draft-7', 'draft-6', 'x' or None"
            )));
        }
    })
}

/// The form of a file, by the end of its name.
fn form_of(path: &Path) -> PyResult<Form> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    match extension {
        Some("toml") => Ok(Form::Toml),
        Some("json" | "jsonc") => Ok(Form::Json),
        _ => Err(PyValueError::new_err(
            "the name of a policy file must end with .toml or .json",
        )),
    }
}

fn read(path: &Path) -> PyResult<String> {
    let bytes = fs::read(path).map_err(|error| {
        // With the number, Python chooses the class: `FileNotFoundError`, for example.
        let text = error.to_string();
        PyOSError::new_err((error.raw_os_error(), text, path.to_path_buf()))
    })?;
    String::from_utf8(bytes)
        .map_err(|_| PyValueError::new_err(format!("{}: it is not UTF-8", path.display())))
}

impl Policy {
    fn new(source: Source, form: Form, text: &str, given: &Arguments<'_, '_>) -> PyResult<Self> {
        let policy = Self {
            source,
            form,
            text: Mutex::new(text.into()),
            stores: NamedStores::of(given.stores)?,
            manner: given.manner()?,
            judge: PerProcess::new(),
        };
        policy.rules(text, false)?;
        Ok(policy)
    }

    /// Reads the rules. If they do not decide, their stores need no connection.
    fn rules(&self, text: &str, decides: bool) -> PyResult<Rules> {
        let rules = match self.form {
            Form::Toml => Rules::from_toml(text),
            Form::Json => Rules::from_json(text),
        };
        let rules = rules.map_err(|errors| {
            let name = self.source.name();
            let lines = errors.iter().map(|error| error.in_file(&name).to_string());
            PyValueError::new_err(lines.collect::<Vec<_>>().join("\n"))
        })?;
        let rules = rules.with_stores(self.stores.open(decides)?);
        rules.map_err(|errors| {
            let lines = errors.iter().map(ToString::to_string);
            PyValueError::new_err(lines.collect::<Vec<_>>().join("\n"))
        })
    }

    fn text(&self) -> Arc<str> {
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&text)
    }

    /// What decides in this process.
    fn judge_of_process(&self) -> PyResult<&Judge> {
        self.judge.get(|| {
            let rules = self.rules(&self.text(), true)?;
            Ok(Judge::new(rules, &self.manner))
        })
    }

    fn ask(&self, py: Python<'_>, asked: Request<'_, '_>) -> PyResult<Acquire> {
        let judge = self.judge_of_process()?;
        let request = asked.parts()?.request(py)?;
        let answer = judge.ask(request);
        let wait: Wait = Box::pin(async move { Outcome::Judged(Box::new(answer.await)) });
        let line = LINES.fetch_add(1, Relaxed);
        Ok(Acquire::new(wait, line, Asked::Decision))
    }
}

/// The arguments of a request.
struct Request<'a, 'py> {
    method: &'a str,
    path: &'a str,
    host: &'a str,
    address: Option<&'a str>,
    headers: Option<&'a Bound<'py, PyAny>>,
    properties: Option<&'a Bound<'py, PyDict>>,
    tier: Option<String>,
    cost: Option<&'a Bound<'py, PyAny>>,
}

impl<'a, 'py> Request<'a, 'py> {
    fn parts(self) -> PyResult<Parts<'a, 'py>> {
        let mut properties = Vec::new();
        for (name, value) in self.properties.into_iter().flatten() {
            properties.push((name.extract()?, value.extract()?));
        }
        let cost = self.cost;
        let cost = cost.map_or(Ok(1), |cost| whole_u32(cost, "cost", 0..=u32::MAX))?;
        Ok(Parts {
            method: self.method,
            path: self.path,
            host: self.host,
            address: self.address,
            headers: self.headers,
            told: Told {
                properties,
                tier: self.tier.unwrap_or_default(),
                cost,
            },
        })
    }
}

#[pymethods]
impl Policy {
    /// Reads rules in TOML. Raises `ValueError` with a line for each that is not valid.
    #[staticmethod]
    #[pyo3(
        signature = (text, *, stores=None, fields="draft-11", trusted=None,
            forwarded="x-forwarded-for", timeout=None),
        text_signature = "(text, *, stores=None, fields='draft-11', trusted=(), \
            forwarded='x-forwarded-for', timeout=None)"
    )]
    fn from_toml(
        text: &str,
        stores: Option<&Bound<'_, PyDict>>,
        fields: Option<&str>,
        trusted: Option<&Bound<'_, PyAny>>,
        forwarded: &str,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let given = Arguments {
            stores,
            fields,
            trusted,
            forwarded,
            timeout,
        };
        Self::new(Source::Text, Form::Toml, text, &given)
    }

    /// Reads rules in JSON, which may have comments. As `from_toml`.
    #[staticmethod]
    #[pyo3(
        signature = (text, *, stores=None, fields="draft-11", trusted=None,
            forwarded="x-forwarded-for", timeout=None),
        text_signature = "(text, *, stores=None, fields='draft-11', trusted=(), \
            forwarded='x-forwarded-for', timeout=None)"
    )]
    fn from_json(
        text: &str,
        stores: Option<&Bound<'_, PyDict>>,
        fields: Option<&str>,
        trusted: Option<&Bound<'_, PyAny>>,
        forwarded: &str,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let given = Arguments {
            stores,
            fields,
            trusted,
            forwarded,
            timeout,
        };
        Self::new(Source::Text, Form::Json, text, &given)
    }

    /// Reads a file whose name ends with .toml or .json. As `from_toml`.
    #[staticmethod]
    #[pyo3(
        signature = (path, *, stores=None, fields="draft-11", trusted=None,
            forwarded="x-forwarded-for", timeout=None),
        text_signature = "(path, *, stores=None, fields='draft-11', trusted=(), \
            forwarded='x-forwarded-for', timeout=None)"
    )]
    fn from_file(
        path: PathBuf,
        stores: Option<&Bound<'_, PyDict>>,
        fields: Option<&str>,
        trusted: Option<&Bound<'_, PyAny>>,
        forwarded: &str,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let given = Arguments {
            stores,
            fields,
            trusted,
            forwarded,
            timeout,
        };
        let form = form_of(&path)?;
        let text = read(&path)?;
        Self::new(Source::File(path), form, &text, &given)
    }

    /// Decides a request, and blocks this thread while it waits in a queue or for a store. In a
    /// task of asyncio, await `judge` instead.
    ///
    /// `path` is as in a request line: encoded, and a query has no effect. `address` is that of
    /// the peer; what is no IP address counts as none. `headers` are pairs of str or bytes, or a
    /// dict. `properties` and `tier` are what only the program knows. `cost` is the number of
    /// permits. Raises `InvalidRequest` if it is no request of HTTP.
    #[pyo3(
        signature = (method, path, *, host="", address=None, headers=None, properties=None,
            tier=None, cost=None),
        text_signature = "($self, method, path, *, host='', address=None, headers=(), \
            properties=None, tier=None, cost=1)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn decide(
        &self,
        py: Python<'_>,
        method: &str,
        path: &str,
        host: &str,
        address: Option<&str>,
        headers: Option<&Bound<'_, PyAny>>,
        properties: Option<&Bound<'_, PyDict>>,
        tier: Option<String>,
        cost: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Given> {
        let asked = Request {
            method,
            path,
            host,
            address,
            headers,
            properties,
            tier,
            cost,
        };
        self.ask(py, asked)?.wait(py)
    }

    /// Decides a request in a task of asyncio, as `decide` does: await it.
    #[pyo3(
        signature = (method, path, *, host="", address=None, headers=None, properties=None,
            tier=None, cost=None),
        text_signature = "($self, method, path, *, host='', address=None, headers=(), \
            properties=None, tier=None, cost=1)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn judge(
        &self,
        py: Python<'_>,
        method: &str,
        path: &str,
        host: &str,
        address: Option<&str>,
        headers: Option<&Bound<'_, PyAny>>,
        properties: Option<&Bound<'_, PyDict>>,
        tier: Option<String>,
        cost: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Awaiting> {
        let asked = Request {
            method,
            path,
            host,
            address,
            headers,
            properties,
            tier,
            cost,
        };
        Ok(Awaiting::new(Py::new(py, self.ask(py, asked)?)?, false))
    }

    /// Puts other rules in force in this process: those of the file as it is now, or of `text`.
    ///
    /// What was taken stays taken, for rules of the same name and key. If the rules are not valid,
    /// it raises `ValueError`, and those before stay in force.
    #[pyo3(signature = (text=None))]
    fn reload(&self, text: Option<&str>) -> PyResult<()> {
        let text = match (&self.source, text) {
            (Source::File(path), None) => read(path)?,
            (Source::Text, Some(text)) => text.to_owned(),
            (Source::File(_), Some(_)) => {
                return Err(PyTypeError::new_err(
                    "a policy of a file takes no text: it reads the file",
                ));
            }
            (Source::Text, None) => {
                return Err(PyTypeError::new_err(
                    "a policy of a text needs the new text",
                ));
            }
        };
        let rules = self.rules(&text, true)?;
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text.into();
        self.judge_of_process()?.replace(rules);
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("<Policy of {}>", self.source.name())
    }
}
