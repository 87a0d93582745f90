//! The most frequent of many keys, in fixed memory: the algorithm Space-Saving (Metwally, Agrawal
//! and El Abbadi, "Efficient computation of frequent and top-k elements in data streams", 2005).
//!
//! **State.** Up to `capacity` entries of a key, a count and an error, sorted by count, the largest
//! first; and for each key with an entry its place.
//!
//! **Transitions**, when a key occurs:
//!
//! - It has an entry: the count grows by 1. The entry changes places with the first of those that
//!   had the same count, so the entries stay sorted.
//! - It has none, and there is room: it gets a new last entry, with count 1 and error 0.
//! - It has none, and there is no room: it gets the last entry, whose count `m` is the smallest.
//!   The count becomes `m + 1`, and the error `m`.
//!
//! **Invariant.** The counts add up to the number of occurrences `n`, so `m <= n / capacity`. A key
//! with an entry occurred at least `count - error` times and at most `count` times. A key without
//! one occurred at most `m` times. As long as no more than `capacity` keys occur, all errors are 0.

use core::fmt;
use std::collections::HashMap;

use foldhash::fast::RandomState;

/// The longest text of a key that is kept, in bytes.
pub(crate) const MAX_TEXT: usize = 200;

/// A table of the most frequent keys. A key is named by its hash. Two keys of the same hash count
/// as one: among a million keys, with a probability of 1 in 30 million.
pub(crate) struct Frequent {
    entries: Vec<Entry>,
    places: HashMap<u64, usize, RandomState>,
    capacity: usize,
}

/// The count of one key.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) hash: u64,
    pub(crate) count: u64,
    pub(crate) error: u64,
    /// The rule that the key is for.
    pub(crate) rule: u32,
    pub(crate) text: Text,
}

impl Frequent {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            entries: Vec::with_capacity(capacity),
            places: HashMap::with_capacity_and_hasher(capacity, RandomState::default()),
            capacity,
        }
    }

    /// Counts an occurrence of the key of `hash`. Its rule and text are those of its first call.
    pub(crate) fn count(&mut self, hash: u64, rule: u32, text: impl fmt::Display) {
        if let Some(&place) = self.places.get(&hash) {
            let count = self.entries[place].count;
            let first = self.entries.partition_point(|entry| entry.count > count);
            self.entries.swap(place, first);
            self.entries[first].count = count + 1;
            self.places.insert(self.entries[place].hash, place);
            self.places.insert(hash, first);
            return;
        }
        let entry = |error| Entry {
            hash,
            count: error + 1,
            error,
            rule,
            text: Text::new(&text),
        };
        // Displaying a key may panic, so it comes before every change.
        if self.entries.len() < self.capacity {
            self.entries.push(entry(0));
            self.places.insert(hash, self.entries.len() - 1);
            return;
        }
        let Some(smallest) = self.entries.last().map(|last| last.count) else {
            return;
        };
        // The first of the smallest, so that the entries stay sorted.
        let place = self.entries.partition_point(|entry| entry.count > smallest);
        let before = core::mem::replace(&mut self.entries[place], entry(smallest));
        self.places.remove(&before.hash);
        self.places.insert(hash, place);
    }

    /// The entries, the largest count first.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// How often a key without an entry can have occurred.
    pub(crate) fn most_without_entry(&self) -> u64 {
        match self.entries.last() {
            Some(last) if self.entries.len() == self.capacity => last.count,
            _ => 0,
        }
    }
}

/// Text in memory of a fixed size. The end of a longer text is cut off.
#[derive(Clone)]
pub(crate) struct Text {
    bytes: [u8; MAX_TEXT],
    len: usize,
}

impl Text {
    fn new(text: &impl fmt::Display) -> Self {
        let mut this = Self {
            bytes: [0; MAX_TEXT],
            len: 0,
        };
        // Fails when the text is full.
        let _ = fmt::write(&mut this, format_args!("{text}"));
        this
    }

    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = text.floor_char_boundary(MAX_TEXT - self.len);
        self.bytes[self.len..self.len + end].copy_from_slice(&text.as_bytes()[..end]);
        self.len += end;
        if end < text.len() {
            // No later part may follow the gap.
            return Err(fmt::Error);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// Keys of a skewed distribution: small ones are frequent.
    fn keys(count: u64, of: u64) -> impl Iterator<Item = u64> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        (0..count).map(move |_| {
            let mut random = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % of
            };
            random().min(random()).min(random())
        })
    }

    #[test]
    fn every_count_is_within_its_error_and_the_error_within_the_bound() {
        for (count, of, capacity) in [(20_000, 1_000, 50), (5_000, 40, 64), (999, 999, 1)] {
            let mut frequent = Frequent::new(capacity);
            let mut exact = BTreeMap::<u64, u64>::new();
            for (seen, key) in (1..).zip(keys(count, of)) {
                frequent.count(key, 0, key);
                *exact.entry(key).or_default() += 1;
                let least = frequent.most_without_entry();
                assert!(least <= seen / capacity as u64);
                assert!(
                    frequent
                        .entries()
                        .is_sorted_by_key(|entry| u64::MAX - entry.count)
                );
            }
            let least = frequent.most_without_entry();
            let sum: u64 = frequent.entries().iter().map(|entry| entry.count).sum();
            assert_eq!(sum, count);
            let mut found = BTreeSet::new();
            for entry in frequent.entries() {
                let exact = exact[&entry.hash];
                assert_eq!(entry.text.as_str(), entry.hash.to_string());
                assert!(entry.count >= exact && entry.count - entry.error <= exact);
                assert!(entry.error <= least);
                found.insert(entry.hash);
            }
            for (key, count) in &exact {
                assert!(found.contains(key) || *count <= least, "{key}: {count}");
            }
            if exact.len() <= capacity {
                assert_eq!((found.len(), least), (exact.len(), 0));
            }
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let text = Text::new(&"ä".repeat(MAX_TEXT));
        assert_eq!(text.as_str(), "ä".repeat(MAX_TEXT / 2));
        let long = "a".repeat(MAX_TEXT - 1);
        let odd = Text::new(&format_args!("{long}ä{}", "b"));
        assert_eq!(odd.as_str(), long);
    }
}
