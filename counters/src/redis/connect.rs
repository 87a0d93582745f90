//! The connection of a counter store, and of its channel.

use core::time::Duration;

use portcullis_stores::{RedisConnection, RedisDefaults, RedisSettings};

use crate::error::StoreError;

/// What the settings of a connection are if they are not made.
// A request waits for a decision: better an error, or a fallback, than a late answer.
const DEFAULTS: RedisDefaults = RedisDefaults::new("portcullis:", Duration::from_millis(250));

/// Creates a connection with the defaults of a counter store.
pub(super) fn open(settings: &RedisSettings) -> Result<RedisConnection, StoreError> {
    // No server was asked, so the text of the error is all there is to tell.
    let connection = RedisConnection::open(settings, DEFAULTS);
    connection.map_err(|error| StoreError::Unavailable(error.to_string()))
}
