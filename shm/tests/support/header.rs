//! Changes of a file's header, with a checksum that is right.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

const HEADER: usize = 4096;

/// Writes `bytes` at an offset of the header, and the checksum.
pub(crate) fn edit(file: &Path, at: usize, bytes: &[u8]) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let mut page = [0; HEADER];
    file.read_exact_at(&mut page, 0).unwrap();
    page[at..at + bytes.len()].copy_from_slice(bytes);
    let sum = page[..HEADER - 8]
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    page[HEADER - 8..].copy_from_slice(&sum.to_ne_bytes());
    file.write_all_at(&page, 0).unwrap();
}
