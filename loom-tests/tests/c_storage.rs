//! The mark of a storage in C: who sees it may use what is in the storage.
#![cfg(portcullis_loom)]

#[path = "../../bindings/c/src/mark.rs"]
mod mark;

use loom::sync::Arc;
use mark::Mark;
use portcullis_loom::{Witness, explore, join, spawn, turn};

const BUCKET: u32 = 7;
const WINDOW: u32 = 8;

struct Storage {
    mark: Mark,
    limiter: Witness,
}

/// Uses the limiter of a type, if it is there.
fn uses(storage: &Storage, of: u32) -> u64 {
    turn();
    if !storage.mark.is(of) {
        return 0;
    }
    storage.limiter.read();
    1
}

#[test]
fn a_call_during_the_initialisation_sees_all_of_the_limiter_or_no_mark() {
    explore(|| {
        let storage = Arc::new(Storage {
            mark: Mark::new(),
            limiter: Witness::new(),
        });
        let a = spawn(&storage, |storage| uses(storage, BUCKET));
        let b = spawn(&storage, |storage| uses(storage, WINDOW));
        assert!(!storage.mark.is_there());
        storage.limiter.write();
        storage.mark.set(BUCKET);
        assert!(storage.mark.is_there());
        assert_eq!((join(b), uses(&storage, BUCKET)), (0, 1));
        assert!(join(a) <= 1);
    });
}
