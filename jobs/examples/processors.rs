//! Two queues of records, and processes that write them to one database that throttles.
//!
//! The processors of queue A and those of queue B do not talk to each other. The database admits
//! 800 writes per second: 8 partitions, numbered from 0, of 100 per second each. A processor that
//! sees records in its queue takes leases on partitions, on a Redis server, and writes as fast as
//! they allow. The queues are Redis streams.
//!
//! 1. 10,000 records are in queue A, and 5,000 in queue B.
//! 2. Processor B starts, and one second later processor A.
//! 3. A second processor A starts. Later the first one is killed. What it had taken from its queue
//!    and not written is delivered to the other one, and its leases end by themselves.
//! 4. Processor B is stopped, and gives back its leases at once. Another processor B takes its
//!    place.
//!
//! ```sh
//! redis-server --port 7379 --save '' &
//! cargo run --release -p portcullis-jobs --example processors -- \
//!     redis://127.0.0.1:7379/ 15
//! ```
//!
//! The second argument is the time of a lease in seconds, 15 by default. In the first such time the
//! store grants nothing: it cannot know which leases a server had before.
//!
//! Source: the example application of the rate limiting pattern of the Azure Architecture Center.

use core::error::Error;
use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use futures_util::Stream;
use futures_util::stream;
use portcullis_async::{Queue, ThreadTimer};
use portcullis_core::Rate;
use portcullis_fleet::{Member, Pool, RedisLeases, RedisSettings};
use portcullis_jobs::{Event, Jobs, Operation, Progress, SettledBatch, WriteOutcome};
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamAutoClaimReply, StreamId, StreamReadReply};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};

type Failure = Box<dyn Error + Send + Sync>;

/// The capacity of the database, in writes per second, and its partitions.
pub(crate) const CAPACITY: u32 = 800;
pub(crate) const PARTITIONS: u32 = 8;
/// The most records in one write.
const BATCH: usize = 10;
/// The consumer group of the processors of a queue.
const GROUP: &str = "processors";

/// The pool of the database's capacity.
pub(crate) fn pool(lease: Duration) -> Result<Pool, Failure> {
    let pool = Pool::builder("database", Rate::per_second(CAPACITY));
    Ok(pool
        .partitions(PARTITIONS)
        .lease(lease)
        .fair(true)
        .build()?)
}

/// What the database has written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    /// How often each record was written, by queue and number.
    pub(crate) records: BTreeMap<(String, u32), u32>,
    /// When writes came, and how many records they had.
    pub(crate) times: Vec<(Instant, usize)>,
}

impl Written {
    /// The number of records of a queue.
    pub(crate) fn of(&self, queue: &str) -> usize {
        self.records.keys().filter(|(of, _)| of == queue).count()
    }
}

/// The database: it counts what it is asked to write. Each connection sends lines of a queue and
/// some numbers.
pub(crate) struct Database {
    pub(crate) address: SocketAddr,
    written: Arc<Mutex<Written>>,
}

impl Database {
    /// Starts a database, whose threads end with the process.
    pub(crate) fn start() -> Result<Self, Failure> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let written = Arc::new(Mutex::new(Written::default()));
        let shared = Arc::clone(&written);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let written = Arc::clone(&shared);
                thread::spawn(move || {
                    for line in BufReader::new(&stream).lines().map_while(Result::ok) {
                        let mut words = line.split_whitespace();
                        let queue = words.next().unwrap_or_default();
                        let numbers: Vec<u32> =
                            words.filter_map(|word| word.parse().ok()).collect();
                        let mut written = written.lock().expect("no panic");
                        written.times.push((Instant::now(), numbers.len()));
                        for number in numbers {
                            *written.records.entry((queue.into(), number)).or_default() += 1;
                        }
                        drop(written);
                        if (&stream).write_all(b"written\n").is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Ok(Self { address, written })
    }

    pub(crate) fn written(&self) -> Written {
        self.written.lock().expect("no panic").clone()
    }
}

/// Puts `records` numbered records into a queue.
pub(crate) async fn enqueue(url: &str, queue: &str, records: u32) -> Result<(), Failure> {
    let mut connection = redis::Client::open(url)?
        .get_multiplexed_async_connection()
        .await?;
    for numbers in (0..records).collect::<Vec<_>>().chunks(1_000) {
        let mut pipe = redis::pipe();
        for number in numbers {
            pipe.cmd("XADD")
                .arg(queue)
                .arg("*")
                .arg("number")
                .arg(number)
                .ignore();
        }
        let () = pipe.query_async(&mut connection).await?;
    }
    Ok(())
}

/// Returns how many records of a queue are not written yet.
pub(crate) async fn backlog(
    connection: &mut MultiplexedConnection,
    queue: &str,
) -> redis::RedisResult<u64> {
    redis::cmd("XLEN").arg(queue).query_async(connection).await
}

/// A record, as its queue has delivered it.
struct Delivery {
    /// Its name in the queue.
    id: String,
    number: u32,
}

impl Delivery {
    fn of(entry: &StreamId) -> Option<Self> {
        Some(Self {
            id: entry.id.clone(),
            number: entry.get("number")?,
        })
    }
}

/// The consumer of a queue.
struct Consumer {
    connection: MultiplexedConnection,
    queue: String,
    name: String,
    /// Records that a processor has taken and not acknowledged for this long are delivered again.
    idle: Duration,
    /// When to look for such records, and from which on.
    claim_at: Instant,
    cursor: String,
    fetched: VecDeque<Delivery>,
}

impl Consumer {
    /// The records of the queue, without end. Each is fetched when the runner asks for it, with up
    /// to nine that come next.
    fn deliveries(self) -> impl Stream<Item = Delivery> {
        stream::unfold(self, async |mut consumer| {
            loop {
                if let Some(delivery) = consumer.fetched.pop_front() {
                    return Some((delivery, consumer));
                }
                if let Err(error) = consumer.fetch().await {
                    eprintln!("{}: {error}", consumer.name);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        })
    }

    async fn fetch(&mut self) -> redis::RedisResult<()> {
        if self.claim_at <= Instant::now() {
            let claimed: StreamAutoClaimReply = redis::cmd("XAUTOCLAIM")
                .arg(&self.queue)
                .arg(GROUP)
                .arg(&self.name)
                .arg(self.idle.as_millis().to_string())
                .arg(&self.cursor)
                .arg("COUNT")
                .arg(BATCH)
                .query_async(&mut self.connection)
                .await?;
            self.fetched
                .extend(claimed.claimed.iter().filter_map(Delivery::of));
            self.cursor = claimed.next_stream_id;
            if self.cursor == "0-0" {
                self.claim_at = Instant::now() + self.idle;
            }
            return Ok(());
        }
        let read: StreamReadReply = redis::cmd("XREADGROUP")
            .arg("GROUP")
            .arg(GROUP)
            .arg(&self.name)
            .arg("COUNT")
            .arg(BATCH)
            .arg("BLOCK")
            .arg(100)
            .arg("STREAMS")
            .arg(&self.queue)
            .arg(">")
            .query_async(&mut self.connection)
            .await?;
        let entries = read.keys.iter().flat_map(|key| &key.ids);
        self.fetched.extend(entries.filter_map(Delivery::of));
        Ok(())
    }
}

/// What a processor is told.
#[derive(Clone, Debug)]
pub(crate) struct Processor {
    pub(crate) url: String,
    pub(crate) database: SocketAddr,
    pub(crate) queue: String,
    pub(crate) name: String,
    pub(crate) lease: Duration,
}

impl Processor {
    /// Adds what the processor is told to a command that calls [`from_environment`].
    ///
    /// [`from_environment`]: Self::from_environment
    fn tell(&self, command: &mut Command) {
        let lease = self.lease.as_millis();
        let words = [&self.url, &self.queue, &self.name]
            .map(String::as_str)
            .join(" ");
        command.env("PROCESSOR", format!("{words} {} {lease}", self.database));
    }

    /// What this process is told to be, if it is a processor.
    pub(crate) fn from_environment() -> Option<Self> {
        let words = std::env::var("PROCESSOR").ok()?;
        let mut words = words.split(' ').map(str::to_owned);
        Some(Self {
            url: words.next()?,
            queue: words.next()?,
            name: words.next()?,
            database: words.next()?.parse().ok()?,
            lease: Duration::from_millis(words.next()?.parse().ok()?),
        })
    }

    /// Runs until the standard input is closed.
    pub(crate) fn run(self) -> Result<Progress, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(self.process())
    }

    async fn process(self) -> Result<Progress, Failure> {
        let client = redis::Client::open(self.url.as_str())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let group = redis::cmd("XGROUP")
            .arg("CREATE")
            .arg(&self.queue)
            .arg(GROUP)
            .arg("0")
            .arg("MKSTREAM")
            .query_async::<()>(&mut connection)
            .await;
        if let Err(error) = group
            && error.code() != Some("BUSYGROUP")
        {
            return Err(error.into());
        }

        // The leases, and the limiter that follows them.
        let store = RedisLeases::new(&RedisSettings::new(&self.url))?;
        let (member, driver) = Member::builder(pool(self.lease)?, store).build()?;
        let driver = tokio::spawn(driver.run());
        let queue = Queue::new(member.limiter(), ThreadTimer::new(), 1_000).shared();

        // The records.
        let reader = Consumer {
            // Its reads block, and so would all other requests of the connection.
            connection: client.get_multiplexed_async_connection().await?,
            queue: self.queue.clone(),
            name: self.name.clone(),
            idle: self.lease,
            claim_at: Instant::now(),
            cursor: "0-0".into(),
            fetched: VecDeque::new(),
        };
        let jobs = Jobs::new(&*queue, ThreadTimer::new())
            .batch(BATCH)
            .concurrency(4)
            .on_event(|event| {
                if let Event::Unacknowledged { operations } = event {
                    eprintln!("{}: {operations} records are delivered again", self.name);
                }
            });
        let handle = jobs.handle();
        let run = jobs.run_acknowledged(
            reader.deliveries(),
            async |batch: Vec<Operation<Delivery>>| match self.write(&batch).await {
                Ok(()) => WriteOutcome::Done,
                Err(_) => WriteOutcome::Retry,
            },
            async |settled: SettledBatch<Delivery>| {
                let ids: Vec<_> = settled.written.iter().map(|one| one.id.as_str()).collect();
                let mut connection = connection.clone();
                let mut pipe = redis::pipe();
                pipe.cmd("XACK")
                    .arg(&self.queue)
                    .arg(GROUP)
                    .arg(&ids)
                    .ignore();
                pipe.cmd("XDEL").arg(&self.queue).arg(&ids).ignore();
                pipe.atomic().query_async::<()>(&mut connection).await
            },
        );

        // How much capacity to ask for: what is in the queue, to be written within a second.
        let mut asks = connection.clone();
        let wants = async {
            loop {
                if let Ok(records) = backlog(&mut asks, &self.queue).await {
                    member.want_rate(records);
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let tells = async {
            let mut before = Vec::new();
            let mut generation = 0;
            loop {
                generation = member.changed(generation).await.generation;
                let mut held: Vec<_> = member.leases().iter().map(|held| held.partition).collect();
                held.sort_unstable();
                if held != before {
                    let rate = held.len() * (CAPACITY / PARTITIONS) as usize;
                    println!("{}: partitions {held:?}, {rate} per second", self.name);
                    before = held;
                }
            }
        };
        // This process ends when its input is closed.
        thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            handle.stop();
        });
        let report = tokio::select! {
            report = run => report,
            never = wants => never,
            never = tells => never,
        };
        // Its leases are free at once.
        drop(member);
        driver.await?;
        Ok(report.progress)
    }

    /// Writes a batch to the database.
    async fn write(&self, batch: &[Operation<Delivery>]) -> Result<(), Failure> {
        let numbers: Vec<_> = batch.iter().map(|one| one.number.to_string()).collect();
        let line = format!("{} {}\n", self.queue, numbers.join(" "));
        let mut stream = tokio::net::TcpStream::connect(self.database).await?;
        stream.write_all(line.as_bytes()).await?;
        let mut answer = String::new();
        tokio::io::BufReader::new(stream)
            .read_line(&mut answer)
            .await?;
        if answer == "written\n" {
            Ok(())
        } else {
            Err("the database failed".into())
        }
    }
}

/// A processor in a process of its own. It is killed if this is dropped.
pub(crate) struct Running {
    child: Child,
    input: Option<ChildStdin>,
}

impl Running {
    /// Starts a processor with a command that calls [`Processor::from_environment`].
    pub(crate) fn start(processor: &Processor, mut command: Command) -> Result<Self, Failure> {
        processor.tell(&mut command);
        let mut child = command.stdin(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        Ok(Self { child, input })
    }

    /// Stops it, as a deployment does: it ends what it has begun, and gives back its leases.
    pub(crate) fn stop(mut self) -> Result<bool, Failure> {
        self.input = None;
        Ok(self.child.wait()?.success())
    }

    /// Kills it, as a crash does.
    pub(crate) fn kill(mut self) -> Result<(), Failure> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn main() -> Result<(), Failure> {
    if let Some(processor) = Processor::from_environment() {
        let name = processor.name.clone();
        let progress = processor.run()?;
        println!("{name}: stops. It has written {} records", progress.written);
        return Ok(());
    }
    let mut arguments = std::env::args().skip(1);
    let url = arguments
        .next()
        .unwrap_or_else(|| "redis://127.0.0.1:6379/".into());
    let lease = arguments.next().map_or(Ok(15), |seconds| seconds.parse())?;
    let lease = Duration::from_secs(lease);
    let database = Database::start()?;
    // Queues of their own for each run.
    let run = std::process::id();
    let queues =
        [("A", 10_000), ("B", 5_000)].map(|(name, records)| (format!("{name}:{run}"), records));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    for (queue, records) in &queues {
        runtime.block_on(enqueue(&url, queue, *records))?;
    }
    let start = |queue: usize, name: &str| {
        println!("{name}: starts");
        let processor = Processor {
            url: url.clone(),
            database: database.address,
            queue: queues[queue].0.clone(),
            name: name.into(),
            lease,
        };
        Running::start(&processor, Command::new(std::env::current_exe()?))
    };
    let until = |percent: usize| {
        let all: usize = queues.iter().map(|(_, records)| *records as usize).sum();
        let mut shown = Instant::now();
        loop {
            let written = database.written();
            if shown.elapsed() >= Duration::from_secs(1) {
                shown = Instant::now();
                let [a, b] = [0, 1].map(|queue| written.of(&queues[queue].0));
                println!("   written: {a:6} of A, {b:6} of B");
            }
            if written.records.len() * 100 >= all * percent {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
    };

    let b1 = start(1, "B1")?;
    thread::sleep(Duration::from_secs(1));
    let a1 = start(0, "A1")?;
    until(10);
    let a2 = start(0, "A2")?;
    until(30);
    println!("A1: is killed");
    a1.kill()?;
    until(60);
    let b2 = start(1, "B2")?;
    b1.stop()?;
    until(100);
    a2.stop()?;
    b2.stop()?;

    let written = database.written();
    let twice: u32 = written.records.values().map(|times| times - 1).sum();
    let first = written
        .times
        .first()
        .map_or_else(Instant::now, |(at, _)| *at);
    let last = written.times.last().map_or(first, |(at, _)| *at);
    let millis = (last - first).as_millis().max(1);
    let records = written.records.len() as u128;
    println!(
        "{records} records in {millis} ms: {} per second of {CAPACITY}. {twice} were written twice.",
        records * 1_000 / millis,
    );
    Ok(())
}
