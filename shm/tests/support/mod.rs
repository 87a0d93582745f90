//! Processes that use one file, folders for files, and what processes were granted.
#![allow(dead_code, reason = "each test uses a part")]

use core::time::Duration;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use portcullis_core::{Clock, MonotonicClock, Timestamp};
use portcullis_shm::SharedFile;

/// The present time, as the processes count it.
pub(crate) fn now() -> Timestamp {
    MonotonicClock::new().now()
}

/// A folder in memory, which is removed with everything in it.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = Path::new("/dev/shm").join(format!("portcullis-{name}-{}", std::process::id()));
        let _remains = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn file(&self, name: &str) -> SharedFile {
        SharedFile::at(self.path(name))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap().flatten();
        entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _nothing_to_do = fs::remove_dir_all(&self.0);
    }
}

/// The variable that tells a process of this test program what to do.
const ROLE: &str = "PORTCULLIS_SHM_ROLE";

/// The command that starts a process of this test program, which runs the ignored test `child` with
/// these words.
pub(crate) fn command(words: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "child",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ROLE, words.join("\n"));
    command
}

/// A process of this test program.
pub(crate) struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a process with these words.
    pub(crate) fn start(words: &[&str]) -> Self {
        let mut command = command(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// Writes a line to the input of the process.
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_ref().unwrap(), "{line}").unwrap();
    }

    /// Waits until the process has written the line `word`. Returns its lines before that.
    pub(crate) fn until(&mut self, word: &str) -> Vec<String> {
        let lines = self.output.by_ref().lines().map_while(Result::ok);
        let (mut seen, mut found) = (Vec::new(), false);
        for line in lines {
            found = line == word;
            if found {
                break;
            }
            seen.push(line);
        }
        assert!(found, "no {word:?} in {seen:#?}");
        seen
    }

    /// Waits for the end of the process, which must succeed. Returns its lines that begin with
    /// `word`, without the word.
    pub(crate) fn finish(mut self, word: &str) -> Vec<String> {
        let lines: Vec<_> = self.output.lines().map_while(Result::ok).collect();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {lines:#?}");
        let lines = lines.iter().filter_map(|line| line.strip_prefix(word));
        lines.map(|rest| rest.trim().to_owned()).collect()
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for the end of the process.
    pub(crate) fn status(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub(crate) fn kill(self) {
        self.kill_for_lines();
    }

    /// Kills the process. Returns the lines that it had written.
    pub(crate) fn kill_for_lines(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.output.lines().map_while(Result::ok).collect()
    }
}

/// What this process was told to do; nothing if it was started in another way.
pub(crate) fn role() -> Vec<String> {
    let role = std::env::var(ROLE).unwrap_or_default();
    role.lines().map(str::to_owned).collect()
}

/// For how long a test runs: short, or as long as `PORTCULLIS_SOAK_SECONDS` says.
pub(crate) fn seconds(short: u64) -> Duration {
    let soak = std::env::var("PORTCULLIS_SOAK_SECONDS");
    Duration::from_secs(soak.map_or(short, |seconds| seconds.parse().unwrap()))
}

/// Permits that were granted at some instant from `earliest` to `latest`, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission {
    pub(crate) earliest: u64,
    pub(crate) latest: u64,
    pub(crate) permits: u64,
}

/// Writes what a process was granted, one call of the operating system each. So a process that is
/// killed loses one record at most.
pub(crate) struct Journal(File);

impl Journal {
    pub(crate) fn open(path: &Path) -> Self {
        let mut options = OpenOptions::new();
        Self(options.create(true).append(true).open(path).unwrap())
    }

    pub(crate) fn write(&mut self, earliest: Timestamp, latest: Timestamp, permits: u64) {
        let numbers = [earliest.as_nanos(), latest.as_nanos(), permits];
        let mut record = [0; 24];
        for (to, from) in record.chunks_exact_mut(8).zip(numbers) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
        self.0.write_all(&record).unwrap();
    }

    pub(crate) fn read(path: &Path) -> Vec<Admission> {
        let mut bytes = Vec::new();
        File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
        let records = bytes.chunks_exact(24).map(|record| {
            let mut numbers = record
                .chunks_exact(8)
                .map(|number| u64::from_ne_bytes(number.try_into().unwrap()));
            let mut next = || numbers.next().unwrap();
            Admission {
                earliest: next(),
                latest: next(),
                permits: next(),
            }
        });
        records.collect()
    }
}

/// A permit, in the unit of `most_above_rate`.
pub(crate) const PERMIT: i128 = 1_000_000_000;

/// Returns the most permits above `per_second * t` that any span of time `t` certainly contains, in
/// billionths: counts the admissions that lie in the span as a whole.
pub(crate) fn most_above_rate(admissions: &[Admission], per_second: u32) -> i128 {
    // What the rate gains up to a time.
    let gained = |nanos: u64| i128::from(per_second) * i128::from(nanos);
    let mut ends: Vec<_> = admissions.iter().map(|a| a.latest).collect();
    ends.sort_unstable();
    ends.dedup();
    // For each end, the permits in the span up to it, less what the rate has gained.
    let mut tree = Tree::new(ends.iter().map(|&end| -gained(end)));
    let mut by_start = admissions.to_vec();
    by_start.sort_unstable_by_key(|a| core::cmp::Reverse(a.earliest));
    let mut most = i128::MIN;
    for admission in by_start {
        let from = ends.partition_point(|&end| end < admission.latest);
        tree.add_from(from, i128::from(admission.permits) * PERMIT);
        most = most.max(tree.most_from(from) + gained(admission.earliest));
    }
    most
}

/// Returns the permits that a bucket of `burst` certainly has at `end`, in billionths, if it was
/// full at first and lost none: how many of the rate's it did not take up because it was full
/// depends on when processes came to take, so each admission counts as late as it can have been.
pub(crate) fn least_left(
    admissions: &[Admission],
    per_second: u32,
    burst: u64,
    end: Timestamp,
) -> i128 {
    let full = i128::from(burst) * PERMIT;
    let mut by_end = admissions.to_vec();
    by_end.sort_unstable_by_key(|a| a.latest);
    let (mut left, mut at) = (full, by_end.first().map_or(0, |a| a.latest));
    let gained = |nanos: u64| i128::from(per_second) * i128::from(nanos);
    for admission in by_end {
        left = full.min(left + gained(admission.latest - at));
        left -= i128::from(admission.permits) * PERMIT;
        at = admission.latest;
    }
    full.min(left + gained(end.as_nanos().saturating_sub(at)))
}

/// Numbers, of which all from an index on grow together, and their maximum.
struct Tree {
    size: usize,
    /// The maximum of a node's numbers, without what its ancestors add.
    most: Vec<i128>,
    added: Vec<i128>,
}

impl Tree {
    fn new(numbers: impl ExactSizeIterator<Item = i128>) -> Self {
        let size = numbers.len().next_power_of_two();
        // Half of the least number: permits are added to all.
        let mut most = vec![i128::MIN / 2; 2 * size];
        for (node, number) in (size..).zip(numbers) {
            most[node] = number;
        }
        for node in (1..size).rev() {
            most[node] = most[2 * node].max(most[2 * node + 1]);
        }
        let added = vec![0; 2 * size];
        Self { size, most, added }
    }

    fn add_from(&mut self, from: usize, by: i128) {
        let mut node = self.size + from;
        self.most[node] += by;
        while node > 1 {
            if node.is_multiple_of(2) {
                self.most[node + 1] += by;
                self.added[node + 1] += by;
            }
            node /= 2;
            self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]) + self.added[node];
        }
    }

    fn most_from(&self, from: usize) -> i128 {
        let mut node = self.size + from;
        let mut most = self.most[node];
        while node > 1 {
            if node.is_multiple_of(2) {
                most = most.max(self.most[node + 1]);
            }
            node /= 2;
            most += self.added[node];
        }
        most
    }
}

#[test]
fn the_fullest_span_is_found() {
    let at = |earliest, latest, permits| Admission {
        earliest,
        latest,
        permits,
    };
    // One permit per nanosecond.
    let most = |admissions: &[Admission]| most_above_rate(admissions, 1_000_000_000) / PERMIT;
    assert_eq!(most(&[at(5, 5, 3)]), 3);
    assert_eq!(most(&[at(5, 5, 3), at(7, 7, 4)]), 5);
    assert_eq!(most(&[at(5, 5, 3), at(9, 9, 4)]), 4);
    assert_eq!(most(&[at(7, 8, 4), at(5, 6, 3), at(20, 20, 2)]), 4);
}

#[test]
fn what_a_bucket_did_not_take_up_because_it_was_full_is_not_expected() {
    let at = |latest, permits| Admission {
        earliest: 0,
        latest,
        permits,
    };
    // One permit per nanosecond.
    let left = |admissions: &[Admission], end| {
        least_left(admissions, 1_000_000_000, 10, Timestamp::from_nanos(end)) / PERMIT
    };
    assert_eq!(left(&[], 5), 10);
    assert_eq!(left(&[at(7, 4)], 7), 6);
    assert_eq!(left(&[at(7, 4)], 9), 8);
    assert_eq!(left(&[at(9, 4), at(7, 10)], 9), -2);
    assert_eq!(left(&[at(99, 4), at(7, 10)], 99), 6);
}
