//! Huge pages for the lines of large tables.
//!
//! The lines of a key are anywhere in its table. So in a table of many megabytes, a decision waits
//! not only for a line, but also for the translation of its address. The processor caches about
//! 2,000 translations: those of 8 MiB in pages of 4 KiB, and those of 4 GiB in pages of 2 MiB.
#![allow(unsafe_code)]

use core::mem::{self, MaybeUninit};

/// The size of a huge page on x86-64, and on `AArch64` with pages of 4 KiB. Elsewhere it is a
/// multiple of the size of a page.
const HUGE_PAGE: usize = 1 << 21;

/// Asks the system for huge pages, as many as fit into `memory`. It chooses the size of a page when
/// the page is written for the first time.
///
/// This is a request only: a system may use small pages all the same.
pub(super) fn request<T>(memory: &mut [MaybeUninit<T>]) {
    let length = mem::size_of_val(memory);
    let start = memory.as_mut_ptr().cast::<u8>();
    let before = start.align_offset(HUGE_PAGE);
    let whole = length.saturating_sub(before) / HUGE_PAGE * HUGE_PAGE;
    if whole == 0 {
        return;
    }
    // SAFETY: the range is within `memory`, which nothing else uses. The advice changes neither
    // contents nor protection of pages.
    let _is_refused = unsafe {
        let first = start.add(before).cast();
        libc::madvise(first, whole, libc::MADV_HUGEPAGE)
    };
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU8;
    use std::vec::Vec;

    use super::{HUGE_PAGE, request};

    /// The kilobytes of huge pages that this process has.
    fn in_huge_pages() -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
        let line = maps
            .lines()
            .find_map(|line| line.strip_prefix("AnonHugePages:"));
        let words = line.and_then(|line| line.split_whitespace().next());
        words.and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    #[test]
    fn memory_that_is_requested_lies_in_huge_pages_if_the_system_has_them() {
        let path = "/sys/kernel/mm/transparent_hugepage/enabled";
        let modes = std::fs::read_to_string(path).unwrap_or_default();
        let before = in_huge_pages();
        let mut memory: Vec<AtomicU8> = Vec::with_capacity(8 * HUGE_PAGE);
        request(memory.spare_capacity_mut());
        memory.extend((0..8 * HUGE_PAGE).map(|_| AtomicU8::new(1)));
        if modes.contains("[madvise]") || modes.contains("[always]") {
            // The system may lack room for some of them.
            assert!(in_huge_pages() > before, "no huge page, though {modes}");
        }
        assert_eq!(memory.len(), 8 * HUGE_PAGE);
    }

    #[test]
    fn less_than_a_huge_page_is_left_alone() {
        let mut memory: Vec<u64> = Vec::with_capacity(3);
        request(memory.spare_capacity_mut());
        request::<u64>(&mut []);
        memory.extend([1, 2, 3]);
        assert_eq!(memory, [1, 2, 3]);
    }
}
