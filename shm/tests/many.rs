//! How many files a process can have open. Alone in its process, because it opens all that it can.

mod support;

use portcullis_core::{Rate, TokenBucket};
use portcullis_shm::OpenError;
use support::Folder;

#[test]
fn a_process_can_have_256_files_open() {
    let folder = Folder::new("many");
    let open = |nth: usize| {
        folder
            .file(&nth.to_string())
            .limiter(TokenBucket::new(Rate::ZERO, 20))
    };
    let mut all = Vec::new();
    let refused = loop {
        match open(all.len()) {
            Ok(bucket) => all.push(bucket),
            Err(error) => break error,
        }
    };
    assert_eq!(all.len(), 256);
    assert!(
        matches!(refused, OpenError::TooMany { most: 256 }),
        "{refused}"
    );
    all.pop();
    all.clear();
    assert!(open(0).is_ok());
}
