//! Bytes that no client of HTTP/2 sends, on the port of Envoy: each connection is bounded, and
//! others are answered.

#[path = "support/client.rs"]
mod client;
#[path = "support/program.rs"]
mod program;

use core::time::Duration;
use std::io::{Read, Write};
use std::net::TcpStream;

use program::Program;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The types of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len())
        .expect("a length")
        .to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The head of a call, in the static table of HPACK and literals.
fn head() -> Vec<u8> {
    let mut head = vec![0x83, 0x86];
    let mut literal = |index: u8, value: &str| {
        let length = u8::try_from(value.len()).expect("a short value");
        head.extend([index, length]);
        head.extend(value.as_bytes());
    };
    literal(
        0x04,
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
    );
    literal(0x01, "a");
    // The content type is the entry 31.
    head.extend([0x0f, 0x10, 16]);
    head.extend(b"application/grpc");
    head
}

/// A connection that has begun.
struct Peer(TcpStream);

impl Peer {
    fn start(program: &Program) -> Self {
        let address = program.grpc.expect("it was started with --grpc");
        let mut stream = TcpStream::connect(address).expect("a server on loopback");
        let limit = Some(Duration::from_secs(20));
        stream.set_read_timeout(limit).expect("a time limit");
        stream.set_write_timeout(limit).expect("a time limit");
        stream.write_all(PREFACE).expect("it is sent");
        let settings = frame(SETTINGS, 0, 0, &[]);
        stream.write_all(&settings).expect("it is sent");
        Self(stream)
    }

    /// Sends until the program has closed the connection, at most `times`. Returns whether it has.
    fn is_stopped(&mut self, times: u32, mut frames: impl FnMut(u32) -> Vec<u8>) -> bool {
        (0..times).any(|nth| self.0.write_all(&frames(nth)).is_err())
    }

    /// The next frame of a type: its flags, its stream and its payload. `None` at the end.
    fn next(&mut self, of: u8) -> Option<(u8, u32, Vec<u8>)> {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).ok()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; usize::try_from(length).expect("a length")];
            self.0.read_exact(&mut payload).ok()?;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            if head[3] == of {
                return Some((head[4], stream, payload));
            }
        }
    }
}

/// Whether a call is answered: with an error, as its question is empty.
fn is_answered(program: &Program) -> bool {
    let mut peer = Peer::start(program);
    let mut call = frame(HEADERS, END_HEADERS, 1, &head());
    call.extend(frame(DATA, END_STREAM, 1, &[0; 5]));
    peer.0.write_all(&call).expect("it is sent");
    peer.next(HEADERS).is_some()
}

fn start(name: &str) -> Program {
    Program::start(name, "rules = []", &["--grpc", "127.0.0.1:0"])
}

#[test]
fn calls_that_are_reset_at_once_end_the_connection() {
    let program = start("rapid-reset");
    assert!(is_answered(&program));
    let before = program.resident();
    let mut peer = Peer::start(&program);
    let stopped = peer.is_stopped(200_000, |nth| {
        let mut both = frame(HEADERS, END_HEADERS, 2 * nth + 1, &head());
        both.extend(frame(RESET, 0, 2 * nth + 1, &[0, 0, 0, 8]));
        both
    });
    assert!(stopped);
    assert!(is_answered(&program));
    let after = program.resident();
    assert!(after < before + 8 * 1024, "{before} KiB, then {after} KiB");
}

#[test]
fn a_head_without_an_end_ends_the_connection() {
    let program = start("continuations");
    let before = program.resident();
    for filler in [&b"\0\x01a\x01b"[..], b""] {
        let mut peer = Peer::start(&program);
        let begun = frame(HEADERS, 0, 1, &head());
        peer.0.write_all(&begun).expect("it is sent");
        let more = frame(CONTINUATION, 0, 1, &filler.repeat(3_000));
        assert!(peer.is_stopped(200_000, |_| more.clone()));
    }
    assert!(is_answered(&program));
    let after = program.resident();
    assert!(after < before + 8 * 1024, "{before} KiB, then {after} KiB");
}

/// The program answers to each of them, and the peer does not read: what waits is bounded, and the
/// program reads no more.
#[test]
fn unread_answers_to_pings_and_settings_take_no_memory() {
    let program = start("pings");
    assert!(is_answered(&program));
    let before = program.resident();
    for (kind, payload) in [(PING, &[0; 8][..]), (SETTINGS, &[])] {
        let mut peer = Peer::start(&program);
        let limit = Some(Duration::from_millis(500));
        peer.0.set_write_timeout(limit).expect("a time limit");
        let many = frame(kind, 0, 0, payload).repeat(1_000);
        assert!(peer.is_stopped(100_000, |_| many.clone()));
        assert!(is_answered(&program));
        let after = program.resident();
        assert!(after < before + 8 * 1024, "{before} KiB, then {after} KiB");
    }
}

#[test]
fn a_peer_has_a_bounded_number_of_calls_under_way() {
    let program = start("streams");
    let mut peer = Peer::start(&program);
    for nth in 0..400 {
        let call = frame(HEADERS, END_HEADERS, 2 * nth + 1, &head());
        peer.0.write_all(&call).expect("it is sent");
    }
    // None of them has a question yet.
    let (_, stream, payload) = peer.next(RESET).expect("a refusal");
    assert_eq!((stream, &*payload), (2 * 256 + 1, &[0, 0, 0, 7][..]));
    assert!(is_answered(&program));
}

#[test]
fn what_is_no_frame_of_http2_ends_the_connection() {
    let program = start("broken-frames");
    for broken in [
        // Data before any head, a head of the stream 0, and one of an even stream.
        frame(DATA, 0, 1, b"a"),
        frame(HEADERS, END_HEADERS, 0, &head()),
        frame(HEADERS, END_HEADERS, 2, &head()),
        // An index that no table has, and an integer that does not end.
        frame(HEADERS, END_HEADERS, 1, &[0xff, 0xff, 0xff, 0xff, 0x0f]),
        frame(HEADERS, END_HEADERS, 1, &[0xff; 100]),
        // Settings and a ping of a wrong size.
        frame(SETTINGS, 0, 0, &[0; 5]),
        frame(PING, 0, 0, &[0; 7]),
        // A frame that is longer than was agreed.
        frame(DATA, 0, 1, &vec![0; 1 << 20]),
    ] {
        let mut peer = Peer::start(&program);
        let _ = peer.0.write_all(&broken);
        // The program may close before it has read all, which is a reset.
        let _ = peer.next(GO_AWAY);
        let mut rest = Vec::new();
        let ended = peer.0.read_to_end(&mut rest);
        let is_late = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        assert!(!ended.is_err_and(is_late), "{}", broken[..9].escape_ascii());
        assert!(is_answered(&program));
    }
}
