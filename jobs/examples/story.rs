//! 10,000 records are written to a service that throttles: by naive senders, and by paced jobs.
//!
//! A record costs 10 units. The service admits 20,000 units in each window of one second, and
//! answers 429 beyond that. So it can write 2,000 records in a window, and needs 5 s for all.
//!
//! - The naive senders send all their records at once, at the beginning of a window. What is
//!   rejected they send again in the next window: 10,000, 8,000, 6,000, 4,000 and 2,000 records.
//!   These are 30,000 sends and 20,000 errors.
//! - The jobs send as many as the service admits, in intervals of 20 ms.
//!
//! ```sh
//! cargo run --release -p portcullis-jobs --example story
//! ```
//!
//! The service is an HTTP server on this machine, one for each of the two. All numbers are its
//! counts. The time is from the first request that it receives until it has written the last
//! record. The ideal is the cost of all records at the rate of the service: 100,000 units at 20,000
//! units per second. Windows lie on a grid of the service's clock, which the jobs do not know. The
//! naive senders are faster than the ideal, because they take the whole of the first and the last
//! window at their beginning.
//!
//! Source: the example in the rate limiting pattern of the Azure Architecture Center.

use core::convert::Infallible;
use core::error::Error;
use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::thread;

use futures_util::future::join_all;
use futures_util::stream;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use portcullis_async::{Queue, ThreadTimer};
use portcullis_core::{Clock as _, FixedWindow, MonotonicClock, Rate, Timestamp};
use portcullis_jobs::{Handle, Jobs, Pace, SlowDown, WriteOutcome, Written};
use tokio::net::{TcpListener, TcpStream};

const RECORDS: u32 = 10_000;
const COST: u32 = 10;
const LIMIT: u32 = 20_000;
const WINDOW: Duration = Duration::from_secs(1);
/// The records in one request.
pub(crate) const BATCH: usize = 10;

type Failure = Box<dyn Error + Send + Sync>;

/// What the service has counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sends: u64,
    pub(crate) errors: u64,
    pub(crate) written: BTreeSet<u32>,
    first: Option<Timestamp>,
    last: Timestamp,
}

impl Counts {
    /// The time from the first request until the last record was written.
    pub(crate) fn time(&self) -> Duration {
        self.last.saturating_since(self.first.unwrap_or(self.last))
    }
}

/// The service, and its limit.
pub(crate) struct Service {
    window: FixedWindow,
    clock: MonotonicClock,
    counts: Mutex<Counts>,
}

impl Service {
    /// Starts a service in a thread of its own, which ends with the process.
    pub(crate) fn start() -> Result<(Arc<Self>, SocketAddr), Failure> {
        let service = Arc::new(Self {
            window: FixedWindow::new(LIMIT.into(), WINDOW),
            clock: MonotonicClock::new(),
            counts: Mutex::default(),
        });
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let served = Arc::clone(&service);
        thread::spawn(move || runtime.block_on(served.serve(listener)));
        Ok((service, address))
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts.lock().expect("no thread panicked").clone()
    }

    /// Returns the time until the next window begins.
    pub(crate) fn next_window(&self) -> Duration {
        let now = Duration::from_nanos(self.clock.now().as_nanos());
        WINDOW.saturating_sub(Duration::from_nanos(now.subsec_nanos().into()))
    }

    async fn serve(self: Arc<Self>, listener: std::net::TcpListener) -> std::io::Result<()> {
        let listener = TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let service = Arc::clone(&self);
            tokio::spawn(async move {
                let answer = service_fn(|request| service.answer(request));
                let connection = hyper::server::conn::http1::Builder::new();
                connection
                    .serve_connection(TokioIo::new(stream), answer)
                    .await
            });
        }
    }

    /// Writes the records of a request, one in each line, until the window is full. The reply says
    /// how many are written.
    async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let body = request
            .into_body()
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes);
        let body = body.unwrap_or_default();
        let records = String::from_utf8_lossy(&body);
        let records: Vec<u32> = records
            .lines()
            .filter_map(|line| line.parse().ok())
            .collect();
        let now = self.clock.now();
        let mut counts = self.counts.lock().expect("no thread panicked");
        counts.first.get_or_insert(now);
        let mut written = 0;
        let mut denied = None;
        for &record in &records {
            counts.sends += 1;
            match self.window.try_acquire_at(now, COST) {
                Ok(_) => {
                    written += 1;
                    counts.last = now;
                    assert!(counts.written.insert(record), "{record} is written twice");
                }
                Err(why) => {
                    counts.errors += 1;
                    denied = why.retry(&self.window).wait_from(now);
                }
            }
        }
        let mut response = Response::new(Full::from(written.to_string()));
        if let Some(wait) = denied {
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            // In milliseconds, as services such as Cosmos DB say it. Rounded up.
            let millis = wait.as_nanos().div_ceil(1_000_000).to_string();
            let millis = millis.parse().expect("digits");
            response.headers_mut().insert("retry-after-ms", millis);
        }
        Ok(response)
    }
}

/// A connection to the service.
struct Client {
    sender: SendRequest<Full<Bytes>>,
}

/// What the service has replied: how many records are written, and when to send the others again.
struct Reply {
    written: usize,
    retry_after: Option<Duration>,
}

impl Client {
    async fn connect(address: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender })
    }

    async fn send(&mut self, records: &[u32]) -> Result<Reply, Failure> {
        let lines: Vec<_> = records.iter().map(u32::to_string).collect();
        let request = Request::post("/records").header("host", "localhost");
        self.sender.ready().await?;
        let response = self
            .sender
            .send_request(request.body(Full::from(lines.join("\n")))?)
            .await?;
        let wait = response.headers().get("retry-after-ms");
        let millis = wait
            .map(|wait| wait.to_str().unwrap_or("0").parse())
            .transpose()?;
        let written = response.into_body().collect().await?.to_bytes();
        Ok(Reply {
            written: str::from_utf8(&written)?.parse()?,
            retry_after: millis.map(Duration::from_millis),
        })
    }
}

/// Many senders, each with some records: a thousand with ten. All send at once, over some
/// connections. Each sends what was rejected again when the service says so, which is in the next
/// window.
pub(crate) async fn naive(address: SocketAddr, each: usize) -> Result<(), Failure> {
    let connecting = (0..16).map(|_| Client::connect(address));
    let mut clients = join_all(connecting)
        .await
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let records: Vec<u32> = (0..RECORDS).collect();
    let mut senders: Vec<Vec<u32>> = records.chunks(each).map(<[u32]>::to_vec).collect();
    while !senders.is_empty() {
        let waiting = Mutex::new(VecDeque::from(senders));
        let waves = clients.iter_mut().map(async |client| {
            let mut rejected = Vec::new();
            let mut wait = Duration::ZERO;
            loop {
                let Some(mut records) = waiting.lock().expect("no panic").pop_front() else {
                    return Ok::<_, Failure>((rejected, wait));
                };
                let reply = client.send(&records).await?;
                if let Some(time) = reply.retry_after {
                    rejected.push(records.split_off(reply.written));
                    // The last reply is nearest to the end of the window.
                    wait = time;
                }
            }
        });
        let waves = join_all(waves)
            .await
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?;
        let wait = waves
            .iter()
            .map(|(_, wait)| *wait)
            .max()
            .unwrap_or_default();
        senders = waves
            .into_iter()
            .flat_map(|(rejected, _)| rejected)
            .collect();
        tokio::time::sleep(wait).await;
    }
    Ok(())
}

/// Jobs at the pace of the service. Calls `started` with the handle of the run.
///
/// At most four requests are on their way, with ten records each. A window that is full rejects
/// them, and then all wait for the next one. No more than five windows can be full, so at worst
/// about 200 records are rejected. It takes a phase of the windows at which a delay moves records
/// across each edge: a few records are usual.
pub(crate) async fn paced(
    address: SocketAddr,
    started: impl FnOnce(Handle),
) -> Result<(), Failure> {
    const WRITES: usize = 4;
    let connecting = (0..WRITES).map(|_| Client::connect(address));
    let clients = join_all(connecting)
        .await
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let clients = Mutex::new(clients);

    // Intervals that are missed because the machine is busy are made up for, up to a window. There
    // is no burst at the start, so that no window gets more than its units.
    let pace = Pace::new(Rate::new(LIMIT, WINDOW), Duration::from_millis(20)).catch_up(WINDOW);
    let timer = ThreadTimer::new();
    let bucket = pace.empty_bucket(timer.now())?;
    let queue = Queue::new(bucket, timer, pace.burst());
    let jobs = Jobs::new(&queue, ThreadTimer::new())
        .interval(pace.interval())
        .cost(|_record: &u32| COST)
        .batch(BATCH)
        .concurrency(WRITES)
        // The service says exactly when it admits more. A pause until then is enough.
        .slow_down(SlowDown::new().percent(100));
    started(jobs.handle());
    let report = jobs
        .run(stream::iter(0..RECORDS), async |batch| {
            let records: Vec<u32> = batch.iter().map(|record| **record).collect();
            let client = clients.lock().expect("no panic").pop();
            let Some(mut client) = client else {
                return Written::from(WriteOutcome::Retry);
            };
            let reply = client.send(&records).await;
            let Ok(Reply {
                written,
                retry_after,
            }) = reply
            else {
                return Written::from(WriteOutcome::Refused);
            };
            clients.lock().expect("no panic").push(client);
            let rejected = WriteOutcome::Overloaded { retry_after };
            let outcome = |place| {
                if place < written {
                    WriteOutcome::Done
                } else {
                    rejected
                }
            };
            Written::each((0..records.len()).map(outcome))
        })
        .await;
    if report.progress.written == u64::from(RECORDS) {
        Ok(())
    } else {
        Err(format!("{report:?}").into())
    }
}

/// The ideal time.
pub(crate) fn ideal() -> Duration {
    WINDOW * RECORDS * COST / LIMIT
}

fn main() -> Result<(), Failure> {
    let (naive_service, naive_address) = Service::start()?;
    let (paced_service, paced_address) = Service::start()?;
    thread::sleep(naive_service.next_window());
    let handle = Arc::new(Mutex::new(None));
    let started = Arc::clone(&handle);
    let naive = thread::spawn(move || -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(naive(naive_address, BATCH))
    });
    let paced = thread::spawn(move || -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let keep = |handle| *started.lock().expect("no panic") = Some(handle);
        runtime.block_on(paced(paced_address, keep))
    });

    println!("        | naive senders           | paced jobs");
    println!("   time |  sends  errors written  |  sends  errors written  time left");
    let clock = MonotonicClock::new();
    let start = clock.now();
    while !(naive.is_finished() && paced.is_finished()) {
        thread::sleep(Duration::from_millis(250));
        let left = handle
            .lock()
            .expect("no panic")
            .as_ref()
            .and_then(|handle: &Handle| handle.progress().time_left);
        let left = left.map_or("?".to_owned(), |left| {
            format!("{:.1} s", left.as_secs_f64())
        });
        let [naive, paced] = [&naive_service, &paced_service].map(|service| service.counts());
        println!(
            "{:5.2} s | {:6} {:7} {:7}  | {:6} {:7} {:7}  {left:>9}",
            clock.now().saturating_since(start).as_secs_f64(),
            naive.sends,
            naive.errors,
            naive.written.len(),
            paced.sends,
            paced.errors,
            paced.written.len(),
        );
    }
    for thread in [naive, paced] {
        thread.join().expect("no panic")?;
    }

    println!();
    println!("|               |  sends | errors |   time |");
    println!("|---------------|--------|--------|--------|");
    for (name, service) in [
        ("naive senders", naive_service),
        ("paced jobs", paced_service),
    ] {
        let counts = service.counts();
        let time = counts.time().as_secs_f64();
        println!(
            "| {name:<13} | {:6} | {:6} | {time:4.2} s |",
            counts.sends, counts.errors
        );
    }
    println!(
        "| {:<13} | {RECORDS:6} | {:6} | {:4.2} s |",
        "ideal",
        0,
        ideal().as_secs_f64()
    );
    Ok(())
}
