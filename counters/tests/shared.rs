//! The counter store in shared memory: it decides as the store in the memory of a process does, and
//! is one store for all processes, also while they are killed.
#![cfg(target_os = "linux")]

use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use portcullis_core::MonotonicClock;
use portcullis_counters::{
    Charge, Counter, CounterStore, GuardSettings, GuardedStore, OnFailure, QuotaState, QuotaWrite,
    SharedCounters, StoreError,
};
use portcullis_shm::SharedFile;

#[path = "support/limits.rs"]
mod limits;

use limits::{ByWrites, Grants, Plain, bucket, windows};

const SECOND: Duration = Duration::from_secs(1);

/// The output of a future of this store: it is ready at once.
#[track_caller]
fn block_on<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("waits"),
    }
}

/// A folder in memory, which is removed with everything in it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("portcullis-store-{name}-{}", std::process::id());
        let path = Path::new("/dev/shm").join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self) -> PathBuf {
        self.0.join("store")
    }

    fn store(&self) -> SharedCounters {
        open(&self.path())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _nothing_to_do = fs::remove_dir_all(&self.0);
    }
}

fn open(path: &Path) -> SharedCounters {
    SharedCounters::open(&SharedFile::at(path), 1_000, 6).unwrap()
}

/// Numbers that need not be good.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// A limit whose permits return within milliseconds.
    fn limit(&mut self) -> Plain {
        if self.below(2) == 0 {
            Plain::Bucket {
                count: 1 + self.below(50),
                period: 1 + self.below(20_000),
                burst: 1 + self.below(20),
            }
        } else {
            Plain::Windows {
                count: 1 + self.below(20),
                length: 1 + self.below(5_000),
                segments: 1 + self.below(6),
            }
        }
    }
}

/// At once, and by reading and writing; by two that have the file open.
#[test]
fn decisions_are_those_of_a_list_of_all_grants() {
    let folder = Folder::new("grants");
    let store = folder.store();
    let by_writes = ByWrites::new(folder.store(), |_| {});
    let (mut allowed, mut denied) = (0, 0);
    for seed in 0..40 {
        let mut random = Random(seed);
        let limits: Vec<_> = (0..=random.below(3)).map(|_| random.limit()).collect();
        let compiled: Vec<_> = limits.iter().map(|plain| plain.limit()).collect();
        let ids: Vec<_> = (0..3).map(|id| format!("{seed}:{id}")).collect();
        let mut grants: HashMap<usize, Grants> = HashMap::new();
        for _ in 0..60 {
            let request = (0..=random.below(2)).map(|_| {
                let of = random.below(limits.len() as u64) as usize;
                (of, random.below(6) as u32)
            });
            let request: Vec<_> = request.collect();
            let charges = request.iter();
            let charges = charges.map(|&(of, n)| Charge::new(&ids[of], &compiled[of], n));
            let charges: Vec<_> = charges.collect();
            let decision = if random.below(2) == 0 {
                block_on(store.take(&charges))
            } else {
                block_on(by_writes.take(&charges))
            };
            let decision = decision.unwrap();
            let now = decision.at().as_nanos() / 1_000;
            let none = Grants::new();
            let available = |grants: &HashMap<usize, Grants>, of: usize| {
                limits[of].available(grants.get(&of).unwrap_or(&none), now)
            };
            let sum = |of: usize| {
                let each = request.iter().filter(|(other, _)| *other == of);
                each.map(|(_, n)| u64::from(*n)).sum::<u64>().max(1)
            };
            let denied_by = request
                .iter()
                .position(|&(of, _)| sum(of) > available(&grants, of));
            assert_eq!(decision.denied_by(), denied_by, "seed {seed}: {limits:?}");
            if denied_by.is_none() {
                allowed += 1;
                for &(of, n) in &request {
                    grants.entry(of).or_default().push((now, u64::from(n)));
                }
            } else {
                denied += 1;
            }
            let left = decision.left().iter().map(|left| left.available);
            assert!(left.eq(request.iter().map(|&(of, _)| available(&grants, of))));
            thread::sleep(Duration::from_micros(random.below(1_000)));
        }
    }
    assert!(allowed > 300 && denied > 300, "{allowed}, {denied}");
}

#[test]
fn a_counter_exists_until_its_first_expiry() {
    let folder = Folder::new("counter");
    let (store, other) = (folder.store(), folder.store());
    let add = |id, expiry, delta| block_on(store.increment_and_get(id, expiry, delta));
    assert_eq!(block_on(store.get("a")), Ok(Counter::default()));
    assert_eq!(add("a", 100 * SECOND, 5).unwrap().value, 5);
    let second = add("a", SECOND, -7).unwrap();
    assert_eq!(second.value, -2);
    assert!(second.expires_in.unwrap() > 90 * SECOND, "keeps its expiry");
    assert_eq!(add("b", 9 * SECOND, i64::MAX).unwrap().value, i64::MAX);
    assert_eq!(add("b", SECOND, 1), Err(StoreError::Overflow));
    let all = block_on(other.get_many(&["c", "b", "a"])).unwrap();
    let values: Vec<_> = all.iter().map(|counter| counter.value).collect();
    assert_eq!(values, [0, i64::MAX, -2]);
    assert_eq!(all[0].expires_in, None);
    let short = add("d", Duration::ZERO, 3).unwrap();
    assert!(short.expires_in.unwrap() <= Duration::from_millis(1));
    thread::sleep(Duration::from_millis(5));
    assert_eq!(block_on(other.get("d")), Ok(Counter::default()));
}

#[test]
fn a_write_applies_only_to_what_was_read_not_long_ago() {
    let folder = Folder::new("write");
    let store = folder.store();
    let ids = ["a", "b"];
    let quota = |used| QuotaState::from(vec![0, 5, 7, used]);
    let read = block_on(store.read_quotas(&ids)).unwrap();
    assert_eq!(read.quotas, [QuotaState::default(), QuotaState::default()]);
    let write = |before: &[QuotaState], used, at| {
        let writes = ids
            .iter()
            .zip(before)
            .map(|(id, before)| QuotaWrite::new(id, before, quota(used), 100 * SECOND));
        block_on(store.write_quotas(at, &writes.collect::<Vec<_>>()))
    };
    let old = read.at.saturating_sub(Duration::from_millis(1_001));
    assert_eq!(write(&read.quotas, 1, old), Ok(false));
    assert_eq!(write(&read.quotas, 1, read.at), Ok(true));
    // The second quota is another one now.
    assert_eq!(
        write(&[quota(1), QuotaState::default()], 2, read.at),
        Ok(false)
    );
    let after = block_on(store.read_quotas(&ids)).unwrap();
    assert_eq!(after.quotas, [quota(1), quota(1)], "nothing was written");
    assert!(after.at > read.at);
}

#[test]
fn a_full_or_lost_store_says_so() {
    let folder = Folder::new("full");
    let store = SharedCounters::open(&SharedFile::at(folder.path()), 1, 1).unwrap();
    let limit = bucket(1, 3_600 * SECOND, 10);
    let mut ids = (0..1_000).map(|id| id.to_string());
    let full = ids.find_map(|id| block_on(store.take(&[Charge::new(&id, &limit, 1)])).err());
    assert_eq!(full, Some(StoreError::Full));
    let taken = block_on(store.take(&[Charge::new("0", &limit, 9)])).unwrap();
    assert!(taken.is_allowed(), "what it has, it keeps");
    let long = windows(1_000, 3_600 * SECOND, 6);
    let refused = block_on(store.take(&[Charge::new("0", &long, 1)])).unwrap_err();
    assert!(
        refused.to_string().contains("SharedCounters::open"),
        "{refused}"
    );
    let file = OpenOptions::new().write(true).open(folder.path());
    file.unwrap().set_len(4096).unwrap();
    let lost = block_on(store.take(&[Charge::new("0", &limit, 1)]));
    assert!(matches!(lost, Err(StoreError::Unavailable(_))) && store.is_lost());
}

/// The file has room for windows of 2 segments.
#[test]
fn a_limit_that_the_file_has_no_room_for_is_refused_and_opens_no_other() {
    let folder = Folder::new("segments");
    let open = || SharedCounters::open(&SharedFile::at(folder.path()), 100, 2).unwrap();
    let store = open();
    let (long, limit) = (windows(9, SECOND, 4), windows(2, 3_600 * SECOND, 2));
    assert!(matches!(store.supports(&long), Err(StoreError::Refused(_))));
    assert_eq!(store.supports(&limit), Ok(()));

    let settings = GuardSettings::new(OnFailure::Allow);
    let guarded = GuardedStore::new(open(), MonotonicClock::new(), settings);
    let mut granted = 0;
    for _ in 0..100 {
        let refused = block_on(guarded.take(&[Charge::new("long", &long, 1)]));
        assert!(
            matches!(refused, Err(StoreError::Refused(_))),
            "{refused:?}"
        );
        let taken = block_on(guarded.take(&[Charge::new("a", &limit, 1)])).unwrap();
        granted += u32::from(taken.is_allowed());
    }
    assert_eq!(granted, 2);
}

const ROLE: &str = "PORTCULLIS_STORE_FILE";
const PER_SECOND: u64 = 2_000;
const BURST: u64 = 2_000;

/// Takes until it is killed, and writes the time of each grant, in microseconds, into a file.
#[test]
#[ignore = "a process of the other tests"]
fn child() {
    let Ok(path) = std::env::var(ROLE) else {
        return;
    };
    let store = open(Path::new(&path));
    let mut journal = OpenOptions::new()
        .create(true)
        .append(true)
        .open(format!("{path}.journal"))
        .unwrap();
    // A window and a bucket, both of which every request takes from.
    let limit = bucket(PER_SECOND, SECOND, BURST);
    let all = windows(1 << 40, 3_600 * SECOND, 6);
    let charges = [Charge::new("one", &limit, 1), Charge::new("all", &all, 1)];
    loop {
        let decision = block_on(store.take(&charges)).unwrap();
        if decision.is_allowed() {
            let at = decision.at().as_nanos() / 1_000;
            journal.write_all(&at.to_ne_bytes()).unwrap();
        }
    }
}

fn start(path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(ROLE, path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn four_processes_share_one_limit(time: Duration) {
    let folder = Folder::new(&format!("four-{}", time.as_secs()));
    let path = folder.path();
    let mut children: Vec<_> = (0..4).map(|_| start(&path)).collect();
    let (begun, mut killed) = (Instant::now(), 4);
    while begun.elapsed() < time {
        thread::sleep(Duration::from_millis(40));
        let unlucky = &mut children[killed % 4];
        kill(unlucky);
        *unlucky = start(&path);
        killed += 1;
    }
    children.iter_mut().for_each(kill);
    let journal = fs::read(folder.0.join("store.journal")).unwrap();
    let times = journal.chunks_exact(8);
    let mut times: Vec<_> = times
        .map(|time| u64::from_ne_bytes(time.try_into().unwrap()))
        .collect();
    times.sort_unstable();
    // The most permits above the rate in any span: that from each grant on.
    let (mut most, mut least) = (0_i128, i128::MAX);
    for (nth, &at) in times.iter().enumerate() {
        let gained = i128::from(PER_SECOND) * i128::from(at);
        let before = nth as i128 * 1_000_000 - gained;
        least = least.min(before);
        most = most.max(before + 1_000_000 - least);
    }
    assert!(
        most <= i128::from(BURST) * 1_000_000,
        "{most} millionths above the rate"
    );
    let took = times[times.len() - 1] - times[0];
    let bound = BURST + took * PER_SECOND / 1_000_000;
    println!(
        "{} of {bound} permits, {killed} processes killed",
        times.len()
    );
    assert!(
        times.len() as u64 >= bound * 99 / 100,
        "{} of {bound}",
        times.len()
    );
    // All or nothing: the other limit has as many grants, and those whose process was killed
    // before its note.
    let store = folder.store();
    let all = windows(1 << 40, 3_600 * SECOND, 6);
    let decision = block_on(store.take(&[Charge::new("all", &all, 0)])).unwrap();
    let counted = (1 << 40) - decision.left()[0].available;
    let noted = times.len() as u64;
    assert!(
        noted <= counted && counted <= noted + killed as u64,
        "{noted} {counted}"
    );
}

#[test]
fn four_processes_share_one_limit_while_processes_are_killed() {
    four_processes_share_one_limit(3 * SECOND);
}

#[test]
#[ignore = "half a minute"]
fn four_processes_share_one_limit_for_long() {
    four_processes_share_one_limit(30 * SECOND);
}
