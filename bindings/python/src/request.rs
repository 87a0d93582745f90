//! Requests of HTTP, as Python describes them.
//!
//! Everything of a request is the choice of a client, so what is not valid is an
//! `InvalidRequest`, whose answer is 400. It has no limit of its own: a client could otherwise
//! choose a spelling that its server reads, and that no rule matches.

use core::net::IpAddr;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request};
use portcullis_tower::{PeerAddress, Target};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::errors::invalid;
use crate::judge::Told;

/// The parts of a request.
pub(crate) struct Parts<'a, 'py> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) host: &'a str,
    pub(crate) address: Option<&'a str>,
    pub(crate) headers: Option<&'a Bound<'py, PyAny>>,
    pub(crate) told: Told,
}

impl Parts<'_, '_> {
    pub(crate) fn request(self, py: Python<'_>) -> PyResult<Request<()>> {
        let mut request = Request::new(());
        // Many servers pass on a method as it was sent, and many routers read it in any case.
        let method = self.method.to_ascii_uppercase();
        *request.method_mut() = Method::from_bytes(method.as_bytes())
            .map_err(|_| invalid(py, "the method is not one of HTTP"))?;
        let Target(target) = target(self.path).map_err(|problem| invalid(py, problem))?;
        *request.uri_mut() = target;
        if let Some(headers) = self.headers {
            add_fields(headers, request.headers_mut())?;
        }
        if !self.host.is_empty() {
            let host =
                HeaderValue::from_bytes(&latin(self.host).map_err(|text| invalid(py, text))?);
            let host = host.map_err(|_| invalid(py, "the host is not valid"))?;
            request.headers_mut().insert(header::HOST, host);
        }
        if let Some(address) = self.address.and_then(address) {
            request.extensions_mut().insert(PeerAddress(address));
        }
        request.extensions_mut().insert(self.told);
        Ok(request)
    }
}

/// Reads an address, of which a zone (RFC 4007) is no part. `None` if it is none: that of a Unix
/// socket, for example.
fn address(text: &str) -> Option<IpAddr> {
    let (address, _) = text.split_once('%').unwrap_or((text, ""));
    address.parse().ok()
}

/// Reads a path. A control character in it is refused, encoded or not: `$` of Python's regular
/// expressions matches before a newline too, so a router that uses it takes `/login%0A` for
/// `/login`.
fn target(path: &str) -> Result<Target, &'static str> {
    let is_control = |byte: u8| byte < 0x20 || byte == 0x7f;
    let (sent, _) = path.split_once('?').unwrap_or((path, ""));
    let mut rest = sent.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        let encoded = match (byte, after) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)),
            _ => None,
        };
        if is_control(encoded.map_or(*byte, |(high, low)| high << 4 | low)) {
            return Err("the path has a control character");
        }
    }
    Target::parse(path.as_bytes()).ok_or(if path.starts_with('/') {
        "the path is too long"
    } else {
        "the path does not begin with '/'"
    })
}

fn hex(digit: u8) -> Option<u8> {
    let digit = char::from(digit).to_digit(16)?;
    u8::try_from(digit).ok()
}

/// Adds header fields: pairs of a name and a value, each as `str` or `bytes`, or a `dict` of them.
fn add_fields(fields: &Bound<'_, PyAny>, headers: &mut HeaderMap) -> PyResult<()> {
    let items = match fields.cast::<PyDict>() {
        Ok(fields) => fields.items().into_any(),
        Err(_) => fields.clone(),
    };
    let py = fields.py();
    for field in items.try_iter()? {
        let (name, value) = pair(&field?)?;
        let name = HeaderName::from_bytes(&bytes_of(&name)?);
        let name = name.map_err(|_| invalid(py, "the name of a header field is not valid"))?;
        let value = HeaderValue::from_bytes(&bytes_of(&value)?);
        let value = value.map_err(|_| invalid(py, "the value of a header field is not valid"))?;
        let added = headers.try_append(name, value);
        added.map_err(|_| invalid(py, "there are too many header fields"))?;
    }
    Ok(())
}

/// The two items of a field.
fn pair<'py>(field: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    if let Ok(pair) = field.extract::<(Bound<'py, PyAny>, Bound<'py, PyAny>)>() {
        return Ok(pair);
    }
    let wrong = || PyTypeError::new_err("headers are pairs of a name and a value, or a dict");
    if field.is_instance_of::<PyString>() || field.is_instance_of::<PyBytes>() {
        return Err(wrong());
    }
    let items = field.try_iter().map_err(|_| wrong())?;
    let items = items.take(3).collect::<PyResult<Vec<_>>>()?;
    <[_; 2]>::try_from(items).map_or_else(|_| Err(wrong()), |[name, value]| Ok((name, value)))
}

/// The bytes of a name or a value.
fn bytes_of(text: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = text.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    let Ok(text) = text.cast::<PyString>() else {
        let kind = text.get_type();
        let kind = kind.name()?;
        let problem = format!("a header field is of str or bytes, not {kind}");
        return Err(PyTypeError::new_err(problem));
    };
    let py = text.py();
    let text = text.to_cow()?;
    latin(&text).map_err(|problem| invalid(py, problem))
}

/// The bytes of a text that is one character for each byte, as servers make it.
fn latin(text: &str) -> Result<Vec<u8>, &'static str> {
    let bytes = text.chars().map(|c| u8::try_from(u32::from(c)));
    let bytes = bytes.collect::<Result<_, _>>();
    bytes.map_err(|_| "a header field has a character that is not Latin-1")
}

/// Reads the networks of proxies: addresses and networks, and `unix` for peers without an address.
pub(crate) fn networks(texts: &Bound<'_, PyAny>) -> PyResult<(Vec<ipnet::IpNet>, bool)> {
    if texts.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(
            "trusted must be a list of networks, not a str",
        ));
    }
    let (mut networks, mut is_unix) = (Vec::new(), false);
    for text in texts.try_iter()? {
        let text = text?;
        let text: String = text.extract()?;
        let address = || Some(text.parse::<IpAddr>().ok()?.into());
        match text.parse().ok().or_else(address) {
            Some(network) => networks.push(network),
            None if text == "unix" => is_unix = true,
            None => {
                return Err(PyValueError::new_err(format!(
                    "trusted: {text:?} is no network, no address and not 'unix'"
                )));
            }
        }
    }
    Ok((networks, is_unix))
}
