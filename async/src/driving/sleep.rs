//! Lets threads sleep until a word changes: [`wait`] and [`wake_one`].
//!
//! On most systems these are calls of `atomic-wait` (a futex). That crate does not compile on the
//! others. There, threads park at one of a few condition variables, chosen by the address of the
//! word.

// Where there is a futex, its functions take the place of those of `parking`.
#[cfg(any(
    target_os = "linux",
    target_os = "android",
    target_os = "macos",
    target_os = "ios",
    target_os = "watchos",
    target_os = "freebsd",
    windows
))]
pub(crate) use atomic_wait::{wait, wake_one};
#[allow(unused_imports, reason = "there is a futex")]
pub(crate) use parking::*;

#[allow(dead_code, reason = "there is a futex")]
mod parking {
    use core::sync::atomic::AtomicU32;
    use core::sync::atomic::Ordering::SeqCst;
    use std::sync::{Condvar, Mutex, PoisonError};

    /// Where threads park whose words have one of some addresses.
    struct Place {
        /// Held between the look at a word and the sleep, and before a wake-up. So a wake-up after
        /// a change of the word is not lost.
        lock: Mutex<()>,
        changed: Condvar,
    }

    const PLACES: usize = 16;

    static ALL: [Place; PLACES] = [const {
        Place {
            lock: Mutex::new(()),
            changed: Condvar::new(),
        }
    }; PLACES];

    fn place(word: *const AtomicU32) -> &'static Place {
        &ALL[word.addr() / 64 % PLACES]
    }

    /// Sleeps while the word has `value`. May return earlier.
    pub(crate) fn wait(word: &AtomicU32, value: u32) {
        let place = place(word);
        let held = place.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if word.load(SeqCst) == value {
            drop(place.changed.wait(held));
        }
    }

    /// Wakes a thread that waits at the word, after a change of the word. It wakes all threads of
    /// the place. A thread whose word has not changed sleeps again.
    pub(crate) fn wake_one(word: *const AtomicU32) {
        let place = place(word);
        drop(place.lock.lock().unwrap_or_else(PoisonError::into_inner));
        place.changed.notify_all();
    }

    #[cfg(test)]
    mod tests {
        use core::time::Duration;
        use std::sync::mpsc;
        use std::thread;

        use super::*;

        /// Long enough for any machine.
        const LONG: Duration = Duration::from_secs(30);

        #[test]
        fn a_thread_whose_word_has_changed_does_not_sleep() {
            let (ended, end) = mpsc::channel();
            thread::spawn(move || {
                wait(&AtomicU32::new(1), 0);
                ended.send(()).unwrap();
            });
            assert_eq!(end.recv_timeout(LONG), Ok(()));
        }

        fn take_turns(turn: &AtomicU32, own: u32) {
            for _ in 0..10_000 {
                while turn.load(SeqCst) != own {
                    wait(turn, 1 - own);
                }
                turn.store(1 - own, SeqCst);
                wake_one(turn);
            }
        }

        #[test]
        fn two_threads_that_wake_each_other_in_turn_lose_no_wake_up() {
            let (ended, end) = mpsc::channel();
            thread::spawn(move || {
                let turn = AtomicU32::new(0);
                thread::scope(|scope| {
                    scope.spawn(|| take_turns(&turn, 1));
                    take_turns(&turn, 0);
                });
                ended.send(()).unwrap();
            });
            assert_eq!(end.recv_timeout(LONG), Ok(()));
        }

        #[test]
        fn a_wake_up_reaches_the_threads_of_all_words_of_a_place() {
            let (ended, end) = mpsc::channel();
            thread::spawn(move || {
                let words: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
                thread::scope(|scope| {
                    for word in &words {
                        scope.spawn(|| {
                            while word.load(SeqCst) == 0 {
                                wait(word, 0);
                            }
                        });
                    }
                    for word in &words {
                        word.store(1, SeqCst);
                        wake_one(word);
                    }
                });
                ended.send(()).unwrap();
            });
            assert_eq!(end.recv_timeout(LONG), Ok(()));
        }
    }
}
