//! The key of a request: text, bytes or a whole number.
//!
//! A limit in this process finds a key by the hash that Python has for it, which text and bytes
//! store: nothing is copied. It has 64 bits and a random seed, so it need only be mixed
//! ([`Mixed`]). Python's hash of a number is the number, which a client may choose, so numbers are
//! hashed here. Limits that processes share must find a key by the same hash in all of them, so
//! they hash its bytes.

use core::hash::{BuildHasher, Hash, Hasher};
use std::hash::RandomState;
use std::sync::OnceLock;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString};

/// A key, as a table hashes it.
#[derive(Clone, Debug)]
pub(crate) enum Key {
    /// The hash of a key, for limits in this process.
    Hashed(u64),
    /// Text in UTF-8, with surrogates as they are.
    Text(Vec<u8>),
    Bytes(Vec<u8>),
    /// Whether it is negative, and its amount.
    Number(bool, u128),
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Hashed(hash) => state.write_u64(*hash),
            // The first byte differs by kind, so `"1"`, `b"1"` and `1` are three keys.
            Self::Text(text) => (0_u8, text).hash(state),
            Self::Bytes(bytes) => (1_u8, bytes).hash(state),
            Self::Number(is_negative, amount) => (2_u8, is_negative, amount).hash(state),
        }
    }
}

/// What sets the hashes of bytes apart from those of the same text: Python's are equal.
const BYTES: u64 = 0x9E37_79B9_7F4A_7C15;

/// Hashes what is a hash already: one multiplication, with a random seed.
#[derive(Clone, Debug)]
pub(crate) struct Mixed {
    seed: u64,
    factor: u64,
}

impl Mixed {
    pub(crate) fn new() -> Self {
        let random = || RandomState::new().hash_one(0);
        Self {
            seed: random(),
            factor: random() | 1,
        }
    }
}

impl BuildHasher for Mixed {
    type Hasher = Self;

    #[inline]
    fn build_hasher(&self) -> Self {
        self.clone()
    }
}

impl Hasher for Mixed {
    #[inline]
    fn write_u64(&mut self, hash: u64) {
        let product = u128::from(self.seed ^ hash) * u128::from(self.factor);
        self.seed = product as u64 ^ (product >> 64) as u64;
    }

    /// Not called: a table of this process has hashes as its keys.
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.seed
    }
}

/// Python's hash.
#[inline]
fn hash_of(key: &Bound<'_, PyAny>) -> PyResult<u64> {
    Ok(key.hash()?.cast_unsigned() as u64)
}

impl Key {
    /// Reads a key for a limit in this process.
    #[inline]
    pub(crate) fn local(key: &Bound<'_, PyAny>) -> PyResult<Self> {
        static NUMBERS: OnceLock<RandomState> = OnceLock::new();
        if key.is_exact_instance_of::<PyString>() {
            return Ok(Self::Hashed(hash_of(key)?));
        }
        if key.is_exact_instance_of::<PyBytes>() {
            return Ok(Self::Hashed(hash_of(key)? ^ BYTES));
        }
        // A subclass may have another hash.
        let py = key.py();
        if key.is_instance_of::<PyString>() {
            let text = py
                .get_type::<PyString>()
                .call_method1("__add__", (key, ""))?;
            return Ok(Self::Hashed(hash_of(&text)?));
        }
        Ok(Self::Hashed(match Self::shared(key)? {
            Self::Bytes(bytes) => hash_of(&PyBytes::new(py, &bytes))? ^ BYTES,
            number => NUMBERS.get_or_init(RandomState::new).hash_one(number),
        }))
    }

    /// Reads a key for a limit that processes share.
    pub(crate) fn shared(key: &Bound<'_, PyAny>) -> PyResult<Self> {
        if key.is_instance_of::<PyString>() {
            let encode = key.py().get_type::<PyString>().getattr("encode")?;
            let bytes = encode.call1((key, "utf-8", "surrogatepass"))?;
            return Ok(Self::Text(bytes.cast::<PyBytes>()?.as_bytes().to_vec()));
        }
        if let Ok(bytes) = key.cast::<PyBytes>() {
            return Ok(Self::Bytes(bytes.as_bytes().to_vec()));
        }
        if key.is_instance_of::<PyInt>() {
            if let Ok(amount) = key.extract() {
                return Ok(Self::Number(false, amount));
            }
            let amount = key.call_method0("__neg__")?.extract();
            return amount
                .map(|amount| Self::Number(true, amount))
                .map_err(|_| PyValueError::new_err("a key that is a number has at most 128 bits"));
        }
        Err(PyTypeError::new_err(format!(
            "a key is str, bytes or int, not {}",
            key.get_type().name()?
        )))
    }
}
