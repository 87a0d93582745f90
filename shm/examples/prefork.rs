//! A prefork HTTP server: four worker processes accept connections on one socket, and one limit in
//! shared memory holds for all of them together.
//!
//! ```sh
//! # The address, the permits per second, and the burst.
//! cargo run -p portcullis-shm --example prefork -- 127.0.0.1:3002 1 5 &
//!
//! # The first five requests are served, each by any of the workers: `Served by process ...`.
//! # The sixth gets `429 Too Many Requests` and `Retry-After: 1`.
//! for i in 1 2 3 4 5 6; do curl -i http://127.0.0.1:3002/; done
//!
//! # A worker that is killed is replaced. The limit goes on where it was.
//! pkill -9 -n prefork
//! for i in 1 2 3; do curl -i http://127.0.0.1:3002/; done
//!
//! # What the workers share. It outlives them.
//! cargo run -p portcullis-cli -- shm show prefork.3002
//! cargo run -p portcullis-cli -- shm rm prefork.3002
//! ```

use core::error::Error;
use core::time::Duration;
use std::env;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::parent_id;
use std::process::{Child, Command, Stdio};
use std::thread;

use portcullis_core::{Clock, MonotonicClock, Rate, Retry, TokenBucket};
use portcullis_shm::{OpenError, SharedFile, SharedLimiter};

/// The number of worker processes.
const WORKERS: usize = 4;
/// How often the main process looks for workers that have ended, and they for its end.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a client may take to send a request.
const PATIENCE: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<_> = env::args().skip(1).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    match words[..] {
        [address, per_second, burst] => {
            let listener = TcpListener::bind(address)?;
            let name = format!("prefork.{}", listener.local_addr()?.port());
            let limit = open(&name, per_second.parse()?, burst.parse()?)?;
            let program = env::current_exe()?;
            // A worker that starts while the main process ends has another parent when it looks.
            let main = std::process::id().to_string();
            let worker = || {
                let mut command = Command::new(&program);
                command.args(["worker", &main, &name, per_second, burst]);
                command
            };
            let burst = limit.rules().burst();
            println!("{WORKERS} workers share the limit {name}, with a burst of {burst}");
            supervise(&listener, worker)?;
            Ok(())
        }
        ["worker", main, name, per_second, burst] => {
            let limit = open(name, per_second.parse()?, burst.parse()?)?;
            work(&limit, main.parse()?)?;
            Ok(())
        }
        _ => Err("usage: prefork ADDRESS PERMITS_PER_SECOND BURST".into()),
    }
}

/// Opens the limit, or creates it. All processes do the same.
pub(crate) fn open(
    name: &str,
    per_second: u32,
    burst: u64,
) -> Result<SharedLimiter<TokenBucket>, OpenError> {
    let bucket = TokenBucket::builder(Rate::per_second(per_second), burst).build()?;
    SharedFile::named(name)?.limiter(bucket)
}

/// Keeps the workers running. Each has the socket as its standard input.
pub(crate) fn supervise(listener: &TcpListener, worker: impl Fn() -> Command) -> io::Result<()> {
    let start = || -> io::Result<Child> {
        let socket = OwnedFd::from(listener.try_clone()?);
        worker().stdin(Stdio::from(socket)).spawn()
    };
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        workers.push(start()?);
    }
    loop {
        for worker in &mut workers {
            if worker.try_wait()?.is_some() {
                *worker = start()?;
            }
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Serves connections, one after another, until the process `main` has ended.
pub(crate) fn work(limit: &SharedLimiter<TokenBucket>, main: u32) -> io::Result<()> {
    thread::spawn(move || {
        while parent_id() == main {
            thread::sleep(LOOK_EVERY);
        }
        std::process::exit(0);
    });
    let listener = TcpListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    for connection in listener.incoming() {
        // A client that closes the connection early concerns no other.
        let _closed = connection.and_then(|mut client| serve(&mut client, limit));
    }
    Ok(())
}

/// Reads one request, and answers it.
fn serve(client: &mut TcpStream, limit: &SharedLimiter<TokenBucket>) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let (mut head, mut length) = ([0; 8192], 0);
    while !head[..length].ends_with(b"\r\n\r\n") {
        // A head that does not fit ends the connection.
        match client.read(&mut head[length..])? {
            0 => return Ok(()),
            read => length += read,
        }
    }
    let now = MonotonicClock::new().now();
    let process = std::process::id();
    let (status, field, body) = match limit.try_acquire_at(now, 1) {
        Ok(_) => (
            "200 OK",
            String::new(),
            format!("Served by process {process}.\n"),
        ),
        Err(denied) => {
            let field = match denied.retry(limit) {
                Retry::At(at) => {
                    let wait = at.saturating_since(now).as_nanos();
                    format!("Retry-After: {}\r\n", wait.div_ceil(1_000_000_000))
                }
                _ => String::new(),
            };
            (
                "429 Too Many Requests",
                field,
                format!("Denied by process {process}.\n"),
            )
        }
    };
    let length = body.len();
    write!(
        client,
        "HTTP/1.1 {status}\r\n{field}Content-Type: text/plain\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}
