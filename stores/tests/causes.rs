//! An error says why there is no answer, and from where, without the password.

use core::time::Duration;
use std::net::TcpListener;
use std::time::Instant;

use portcullis_stores::{CallError, RedisConnection, RedisDefaults, RedisSettings};

const TIME_LIMIT: Duration = Duration::from_millis(400);

/// Why a server at this address does not answer.
async fn cause(address: &str) -> CallError {
    let defaults = RedisDefaults::new("test:", TIME_LIMIT);
    let settings = RedisSettings::new(&format!("redis://user:secret@{address}/"));
    let connection = RedisConnection::open(&settings, defaults).unwrap();
    let begun = Instant::now();
    let answer: Result<String, _> = connection.query(&redis::cmd("PING")).await;
    let took = begun.elapsed();
    assert!(took < 4 * TIME_LIMIT, "{took:?}");
    let error = answer.unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
    error
}

#[tokio::test]
async fn a_closed_port_an_unknown_host_and_a_silent_server_are_told_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = free.local_addr().unwrap().to_string();
    drop(free);

    let refused = cause(&closed).await.to_string();
    let says = format!("no connection to {closed}: Connection refused");
    assert!(refused.starts_with(&says), "{refused}");

    // No host has such a name (RFC 6761). A resolver may take its time.
    let unknown = cause("unknown.invalid:6379").await;
    match unknown {
        CallError::TimedOut(_) => {}
        CallError::Unconnected { address, error } => {
            assert_eq!(address, "unknown.invalid:6379");
            let text = error.to_string();
            assert!(
                text.contains("lookup") || text.contains("address"),
                "{text}"
            );
        }
        CallError::Failed(error) => panic!("{error}"),
    }

    // The system accepts the connection, and no program reads from it.
    let silent = cause(&silent).await.to_string();
    assert_eq!(silent, "no answer within 400ms");

    let tls = RedisSettings::new("rediss://user:secret@127.0.0.1/");
    let defaults = RedisDefaults::new("test:", TIME_LIMIT);
    let tls = RedisConnection::open(&tls, defaults)
        .unwrap_err()
        .to_string();
    assert!(tls.contains("TLS") && !tls.contains("secret"), "{tls}");
}

/// Calls that fail at the same time do not each try to connect.
#[tokio::test]
async fn one_call_of_many_finds_out_why_and_the_others_end_in_time() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = free.local_addr().unwrap().to_string();
    drop(free);
    let defaults = RedisDefaults::new("test:", TIME_LIMIT);
    let settings = RedisSettings::new(&format!("redis://{closed}/"));
    let connection = RedisConnection::open(&settings, defaults).unwrap();
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let connection = connection.clone();
            tokio::spawn(async move {
                let answer: Result<String, _> = connection.query(&redis::cmd("PING")).await;
                answer.unwrap_err().to_string()
            })
        })
        .collect();
    let begun = Instant::now();
    let mut refused = 0;
    for call in calls {
        let error = call.await.unwrap();
        refused += u32::from(error.contains("refused"));
    }
    assert!(refused > 0 && begun.elapsed() < 4 * TIME_LIMIT);
}
