//! A load of HTTP in an open loop: each request is sent at its time, whatever the replies are. The
//! connections are kept, and carry the next request before the reply to the one before. So a slow
//! reply delays no request, and its delay counts for all that wait behind it.

use core::net::SocketAddr;
use core::time::Duration;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

/// When requests are sent, and by how many connections in turn.
pub(crate) struct Load {
    times: Vec<Duration>,
    connections: usize,
}

/// The reply to a request.
#[derive(Clone, Copy)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Since the time at which the request was to be sent.
    pub(crate) latency: Duration,
}

impl Load {
    /// Requests at random times, independent of each other: `per_second` in the mean.
    pub(crate) fn random(per_second: u32, length: Duration, connections: usize) -> Self {
        let mean = 1.0 / f64::from(per_second);
        let (mut at, mut random) = (0.0, 0x9e37_79b9_7f4a_7c15_u64);
        let next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // From 0, exclusive, to 1.
            let part = (f64::from((random >> 40) as u32) + 0.5) / f64::from(1_u32 << 24);
            at -= mean * part.ln();
            Some(Duration::from_secs_f64(at))
        };
        let times = core::iter::from_fn(next);
        Self {
            times: times.take_while(|at| *at < length).collect(),
            connections,
        }
    }

    /// The number of requests.
    pub(crate) fn requests(&self) -> usize {
        self.times.len()
    }

    /// Sends the requests, and returns their replies, in the order of the requests.
    pub(crate) fn run(&self, address: SocketAddr) -> Vec<Reply> {
        let connect = |_| {
            let stream = TcpStream::connect(address).expect("the server listens");
            stream.set_nodelay(true).expect("a socket of TCP");
            // A test that waits for ever tells less than one that fails.
            let most = Some(Duration::from_secs(30));
            stream.set_read_timeout(most).expect("not zero");
            stream.set_write_timeout(most).expect("not zero");
            stream
        };
        let mut streams: Vec<_> = (0..self.connections).map(connect).collect();
        let start = Instant::now();
        thread::scope(|scope| {
            let read = |(first, stream): (usize, &TcpStream)| {
                let stream = stream.try_clone().expect("a second handle");
                scope.spawn(move || self.replies(first, start, stream))
            };
            let readers: Vec<_> = streams.iter().enumerate().map(read).collect();
            for (n, at) in self.times.iter().enumerate() {
                thread::sleep(at.saturating_sub(start.elapsed()));
                let request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
                let stream = &mut streams[n % self.connections];
                stream.write_all(request).expect("the server reads");
            }
            let replies = readers
                .into_iter()
                .map(|reader| reader.join().expect("replies"));
            let mut replies: Vec<_> = replies.flatten().collect();
            replies.sort_unstable_by_key(|(n, _)| *n);
            replies.into_iter().map(|(_, reply)| reply).collect()
        })
    }

    /// Reads the replies to the requests `first`, `first + connections` and so on.
    fn replies(&self, first: usize, start: Instant, stream: TcpStream) -> Vec<(usize, Reply)> {
        let mut reader = BufReader::new(stream);
        let (mut line, mut body) = (String::new(), Vec::new());
        let sent = self.times.iter().enumerate().skip(first);
        let reply = |(n, at): (usize, &Duration)| {
            let (mut status, mut length) = (None, 0);
            loop {
                line.clear();
                reader.read_line(&mut line).expect("a reply");
                let line = line.trim_end();
                if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
                    status = rest.get(..3).and_then(|code| code.parse().ok());
                } else if let Some((name, value)) = line.split_once(": ") {
                    if name.eq_ignore_ascii_case("content-length") {
                        length = value.parse().expect("a length");
                    }
                } else if line.is_empty() {
                    break;
                }
            }
            body.resize(length, 0);
            reader.read_exact(&mut body).expect("the body of the reply");
            let reply = Reply {
                status: status.expect("the status of a reply"),
                latency: start.elapsed().saturating_sub(*at),
            };
            (n, reply)
        };
        sent.step_by(self.connections).map(reply).collect()
    }
}

/// Returns how many replies have this status, and the latency that half of them and 99 % of them do
/// not exceed.
pub(crate) fn of_status(replies: &[Reply], status: u16) -> (usize, [Duration; 2]) {
    let of = replies.iter().filter(|reply| reply.status == status);
    let mut latencies: Vec<_> = of.map(|reply| reply.latency).collect();
    latencies.sort_unstable();
    let at = |percent: usize| latencies.get(latencies.len() * percent / 100);
    let parts = [50, 99].map(|percent| at(percent).copied().unwrap_or_default());
    (latencies.len(), parts)
}
