//! A client of HTTP/1 that sends what a test wants, byte by byte.

#![allow(dead_code, reason = "each test uses a part")]

use core::fmt::Write as _;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

pub(crate) struct Client(BufReader<TcpStream>);

#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter();
        all.find(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| &**value)
    }
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("a server on loopback");
        Self::of(stream)
    }

    /// Connects from an address of this host.
    pub(crate) fn from(source: IpAddr, address: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
            socket
                .bind((source, 0).into())
                .expect("an address of this host");
            socket.connect(address).await.expect("a server on loopback")
        });
        let stream = stream.into_std().expect("a stream");
        stream.set_nonblocking(false).expect("a stream");
        Self::of(stream)
    }

    fn of(stream: TcpStream) -> Self {
        let limit = Some(Duration::from_secs(30));
        stream.set_read_timeout(limit).expect("a time limit");
        stream.set_nodelay(true).expect("a stream");
        Self(BufReader::new(stream))
    }

    /// Sets how long a reply may take.
    pub(crate) fn set_limit(&mut self, limit: Duration) {
        let stream = self.0.get_ref();
        stream.set_read_timeout(Some(limit)).expect("a time limit");
    }

    pub(crate) fn send(&mut self, text: &str) {
        let stream = self.0.get_mut();
        stream.write_all(text.as_bytes()).expect("it is sent");
    }

    /// As [`send`](Self::send), to a server that may have closed the connection.
    ///
    /// # Errors
    ///
    /// The connection has ended.
    pub(crate) fn try_send(&mut self, text: &str) -> io::Result<()> {
        self.0.get_mut().write_all(text.as_bytes())
    }

    /// Sends a request without a body: `GET /`.
    pub(crate) fn request(&mut self, line: &str, headers: &[(&str, &str)]) {
        let mut text = format!("{line} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            text.push_str("Host: test.example\r\n");
        }
        for (name, value) in headers {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        self.send(&(text + "\r\n"));
    }

    /// Reads a reply.
    ///
    /// # Errors
    ///
    /// The connection has ended, or nothing came in time.
    pub(crate) fn try_reply(&mut self) -> io::Result<Reply> {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match line.trim_end() {
                "" => break,
                line => head.push(line.to_owned()),
            }
        }
        let status = head[0].split(' ').nth(1).and_then(|code| code.parse().ok());
        let field = |line: &String| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_owned(), value.trim().to_owned()))
        };
        let mut reply = Reply {
            status: status.expect("a status"),
            headers: head[1..].iter().filter_map(field).collect(),
            body: String::new(),
        };
        let length = reply.header("content-length");
        let length = length.map_or(0, |length| length.parse().expect("a length"));
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        reply.body = String::from_utf8_lossy(&body).into_owned();
        Ok(reply)
    }

    pub(crate) fn reply(&mut self) -> Reply {
        self.try_reply().expect("a reply")
    }

    pub(crate) fn ask(&mut self, line: &str, headers: &[(&str, &str)]) -> Reply {
        self.request(line, headers);
        self.reply()
    }
}

/// Asks once, on a connection of its own.
pub(crate) fn ask(address: SocketAddr, line: &str, headers: &[(&str, &str)]) -> Reply {
    Client::connect(address).ask(line, headers)
}
