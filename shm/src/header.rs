//! The first page of a file: what the file contains, and which processes can use it.
//!
//! ```text
//! offset  bytes
//!      0   8     "portcull"
//!      8   4     layout version
//!     12   4     0x01020304: the byte order
//!     16   4     bits of a word
//!     20   4     kind of the contents
//!     24   8     size of the file
//!     32   8     fingerprint of what a process must expect in order to use the file
//!     40  16     seed of the hash of keys
//!     56  36     boot id, as text
//!     96  16     offset of CLOCK_MONOTONIC in the time namespace: seconds, nanoseconds
//!    112   8     time of the creation, in seconds since 1970
//!    120   4     process id of the creator
//!    124   4     bytes of the settings' text
//!    128   n     the settings at the creation, as text
//!   4088   8     checksum of all bytes before
//!   4096         the words
//!   size - 8     the end: see `mapping.rs`
//! ```
//!
//! All numbers are in the byte order of the machine. A process writes a header once, before it
//! publishes the file. Readers copy the page out of the file (never out of the mapping), so nothing
//! that another process writes later changes what they checked.

use crate::error::OpenError;

/// The size of a header, and the offset of the words.
pub(crate) const HEADER: usize = 4096;
pub(crate) const MAGIC: &[u8; 8] = b"portcull";
/// The layout of the header and of all kinds of contents. Increase it whenever a word changes its
/// meaning.
pub(crate) const VERSION: u32 = 5;
const BYTE_ORDER: u32 = 0x0102_0304;
const TEXT_AT: usize = 128;
const CHECKSUM_AT: usize = HEADER - 8;
const MOST_TEXT: usize = CHECKSUM_AT - TEXT_AT;
/// A boot id is a UUID.
pub(crate) const BOOT_ID: usize = 36;

/// What a [`SharedFile`](crate::SharedFile) contains.
///
/// ```
/// use portcullis_shm::FileKind;
/// assert_eq!(FileKind::Table.to_string(), "table");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A limiter whose state is one word.
    Limiter,
    /// A table of limiters by key.
    Table,
    /// A concurrency limit.
    Concurrency,
    /// Records of numbers by key.
    Records,
    /// A token bucket in stripes.
    Stripes,
    /// A pool of leases.
    LeasePool,
}

impl FileKind {
    const ALL: [(Self, u32); 6] = [
        (Self::Limiter, 1),
        (Self::Table, 2),
        (Self::Concurrency, 3),
        (Self::Records, 4),
        (Self::Stripes, 5),
        (Self::LeasePool, 6),
    ];
}

impl core::fmt::Display for FileKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(match self {
            Self::Limiter => "limiter",
            Self::Table => "table",
            Self::Concurrency => "concurrency",
            Self::Records => "records",
            Self::Stripes => "stripes",
            Self::LeasePool => "lease pool",
        })
    }
}

/// When `CLOCK_MONOTONIC` began: a file can be used only by processes with the same clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimeBase {
    pub(crate) boot: [u8; BOOT_ID],
    /// The offset of the time namespace, in seconds and nanoseconds.
    pub(crate) offset: [i64; 2],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: FileKind,
    /// The size of the file, in bytes.
    pub(crate) size: u64,
    pub(crate) fingerprint: u64,
    pub(crate) seed: [u64; 2],
    pub(crate) base: TimeBase,
    pub(crate) created: u64,
    pub(crate) creator: u32,
    pub(crate) settings: String,
}

/// FNV-1a. It recognizes damage, and differences of settings. It does not protect
/// against attacks.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Header {
    /// The first page of the file. A text that is too long is cut: the fingerprint covers all of
    /// it.
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut page = [0; HEADER];
        let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
        let mut length = self.settings.len().min(MOST_TEXT);
        while !self.settings.is_char_boundary(length) {
            length -= 1;
        }
        let kind = FileKind::ALL.iter().find(|(kind, _)| *kind == self.kind);
        put(0, MAGIC);
        put(8, &VERSION.to_ne_bytes());
        put(12, &BYTE_ORDER.to_ne_bytes());
        put(16, &usize::BITS.to_ne_bytes());
        put(20, &kind.map_or(0, |(_, number)| *number).to_ne_bytes());
        put(24, &self.size.to_ne_bytes());
        put(32, &self.fingerprint.to_ne_bytes());
        put(40, &self.seed[0].to_ne_bytes());
        put(48, &self.seed[1].to_ne_bytes());
        put(56, &self.base.boot);
        put(96, &self.base.offset[0].to_ne_bytes());
        put(104, &self.base.offset[1].to_ne_bytes());
        put(112, &self.created.to_ne_bytes());
        put(120, &self.creator.to_ne_bytes());
        put(124, &(length as u32).to_ne_bytes());
        put(TEXT_AT, &self.settings.as_bytes()[..length]);
        let sum = fnv(&page[..CHECKSUM_AT]);
        page[CHECKSUM_AT..].copy_from_slice(&sum.to_ne_bytes());
        page
    }

    /// Reads the first page of a file. Returns what is wrong with it, as text for
    /// [`OpenError::Damaged`].
    pub(crate) fn decode(page: &[u8; HEADER]) -> Result<Self, Unreadable> {
        fn part<const N: usize>(page: &[u8; HEADER], at: usize) -> [u8; N] {
            let mut part = [0; N];
            part.copy_from_slice(&page[at..at + N]);
            part
        }
        let u32_at = |at| u32::from_ne_bytes(part(page, at));
        let u64_at = |at| u64::from_ne_bytes(part(page, at));
        let i64_at = |at| i64::from_ne_bytes(part(page, at));
        if part(page, 0) != *MAGIC {
            return Err(Unreadable::Foreign);
        }
        if u32_at(8) != VERSION {
            return Err(Unreadable::Version(u32_at(8)));
        }
        if u32_at(12) != BYTE_ORDER || u32_at(16) != usize::BITS {
            return Err(Unreadable::Platform);
        }
        if u64_at(CHECKSUM_AT) != fnv(&page[..CHECKSUM_AT]) {
            return Err(Unreadable::Damaged("the checksum of its header is wrong"));
        }
        let kind = FileKind::ALL
            .iter()
            .find(|(_, number)| *number == u32_at(20));
        let &(kind, _) = kind.ok_or(Unreadable::Damaged("it has an unknown kind of contents"))?;
        let text = page[TEXT_AT..CHECKSUM_AT].get(..u32_at(124) as usize);
        let settings = text.and_then(|text| str::from_utf8(text).ok());
        Ok(Self {
            kind,
            size: u64_at(24),
            fingerprint: u64_at(32),
            seed: [u64_at(40), u64_at(48)],
            base: TimeBase {
                boot: part(page, 56),
                offset: [i64_at(96), i64_at(104)],
            },
            created: u64_at(112),
            creator: u32_at(120),
            settings: settings
                .ok_or(Unreadable::Damaged("the text of its settings is damaged"))?
                .to_owned(),
        })
    }
}

/// Why a page is no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    Foreign,
    Version(u32),
    Platform,
    Damaged(&'static str),
}

impl Unreadable {
    pub(crate) fn of(self, path: &std::path::Path) -> OpenError {
        let path = path.to_owned();
        match self {
            Self::Foreign => OpenError::Foreign { path },
            Self::Platform => OpenError::Platform { path },
            Self::Version(found) => OpenError::Version {
                path,
                found,
                known: VERSION,
            },
            Self::Damaged(what) => OpenError::Damaged { path, what },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            kind: FileKind::Table,
            size: 8192,
            fingerprint: 7,
            seed: [1, 2],
            base: TimeBase {
                boot: [b'a'; BOOT_ID],
                offset: [-5, 6],
            },
            created: 1_700_000_000,
            creator: 42,
            settings: "token bucket".to_owned(),
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        assert_eq!(Header::decode(&header().encode()), Ok(header()));
    }

    #[test]
    fn a_text_that_is_too_long_is_cut_between_characters() {
        let long = Header {
            settings: "ä".repeat(3_000),
            ..header()
        };
        let read = Header::decode(&long.encode()).unwrap();
        assert_eq!(read.settings, "ä".repeat(MOST_TEXT / 2));
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        let page = header().encode();
        for at in 0..HEADER {
            let mut damaged = page;
            damaged[at] ^= 0x10;
            assert!(Header::decode(&damaged).is_err(), "byte {at}");
        }
        let mut version = page;
        version[8..12].copy_from_slice(&9_u32.to_ne_bytes());
        assert_eq!(Header::decode(&version), Err(Unreadable::Version(9)));
        assert_eq!(Header::decode(&[0; HEADER]), Err(Unreadable::Foreign));
    }
}
