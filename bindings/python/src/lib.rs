//! The Python bindings of Portcullis: the module `portcullis._portcullis`.
//!
//! The package is documented in `README.md` and in `python/portcullis/_portcullis.pyi`. The classes
//! ask limits through one trait, whatever they are (`door.rs`). Requests wait in the queues of
//! `portcullis-async`, in tasks of asyncio (`event_loop.rs`) and in threads alike. A policy decides
//! by the layer of `portcullis-tower` (`judge.rs`).
#![forbid(unsafe_code)]
#![cfg(unix)]

mod acquire;
mod decision;
mod door;
mod errors;
mod event_loop;
mod forked;
mod judge;
mod key;
mod lease;
mod limiter;
mod number;
mod outcome;
mod policy;
mod rate;
mod request;
mod settings;
#[cfg(target_os = "linux")]
mod shared_file;
mod store;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _portcullis(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<limiter::Limiter>()?;
    module.add_class::<limiter::TokenBucket>()?;
    module.add_class::<limiter::FixedWindow>()?;
    module.add_class::<limiter::SlidingWindow>()?;
    module.add_class::<limiter::Concurrency>()?;
    module.add_class::<limiter::AllOf>()?;
    module.add_class::<limiter::Keyed>()?;
    module.add_class::<lease::Lease>()?;
    module.add_class::<acquire::Acquire>()?;
    module.add_class::<policy::Policy>()?;
    module.add_class::<decision::Decision>()?;
    module.add_class::<store::RedisStore>()?;
    #[cfg(target_os = "linux")]
    {
        module.add_class::<store::SharedStore>()?;
        module.add_function(wrap_pyfunction!(limiter::shared, module)?)?;
        module.add_function(wrap_pyfunction!(shared_file::remove_shared, module)?)?;
    }
    forked::watch(module)
}
