//! Which rules match a request: bit vectors, one for each value of each dimension, intersected.
//!
//! Each pattern of a rule is an *entry*; a rule without patterns is one entry. Bit `e` of a vector
//! (a *row*) tells whether entry `e` accepts the value that the row is for. Entries are in the
//! order of their rules, so the lowest bit of the result is the rule that comes first.
//!
//! ```text
//!            entry   0       1           2         3
//!                    GET /a  GET /a/**   /*/b      /**/c
//! method GET         1       1           1         1
//! method other       0       0           1         1
//! 2 components       0       1           1         1
//! first is `a`       1       1           1         1
//! first is other     0       0           1         1
//! second is `b`      1       1           1         1       only entry 2 has a second one
//! second is other    1       1           0         1       before a `**`
//! last is `c`        1       1           1         1       counts only after a `**`
//! last is other      1       1           1         0
//!
//! GET /a/b           0       1           1         0       the intersection of six rows
//! ```
//!
//! A path selects one row by its number of components, one for each of its first components, and
//! one for each of its last ones. For a pattern with at most one `**` these rows decide. A pattern
//! with several is a candidate. What is between its first and its last `**` then decides: see
//! [`Middle`].
//!
//! Bound: a match looks up each component at most twice and intersects at most 2 x 32 + 6 +
//! [`MAX_PROPERTIES`] rows of (entries / 64) words. For each pattern with several `**` that is a
//! candidate, it looks at each component of the path once more. No input makes it slower than
//! that. It does not allocate. A path with several readings is matched by each of them, at most 8,
//! and their results are compared.
//!
//! Sources: Lakshman and Stiliadis, "High-speed policy-based packet forwarding using efficient
//! multi-dimensional range matching", 1998; Baeza-Yates and Gonnet, "A new approach to text
//! searching", 1992, for the patterns with several `**`.

use core::hash::Hash;
use core::net::IpAddr;
use core::ops::ControlFlow;
use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::conditions::{ConditionError, Conditions, Mismatch};
use crate::conditions::{HostName, MAX_HOST_LEN, Parsed, host_name};
use crate::path::{MAX_COMPONENTS, Reading};
use crate::path::{PathError, PathRules};
use crate::pattern::{Part, Pattern};
use crate::problem::{MAX_PATTERN_COMPONENTS, MAX_PROPERTIES, Problem};
use crate::request::{Kind, Request};

type Map<K, V> = HashMap<K, V, RandomState>;

/// The most pairs of a pattern and a value of the same conditions, in all conditions together.
const MAX_PAIRS: usize = 1 << 22;

/// The most words of all rows: 256 MiB.
const MAX_WORDS: usize = 1 << 25;

/// The index of a row.
type Row = u32;

/// The row whose bits are all set. It need not be intersected.
const ALL: Row = 0;
/// Words that are intersected at a time.
const BLOCK: usize = 8;
/// Rows that one request can select, without the two of its host and address.
const MAX_ROWS: usize = 2 * MAX_PATTERN_COMPONENTS + 4 + MAX_PROPERTIES;

/// Compiled [`Conditions`]: tells which of them a request meets, without trying each.
///
/// # Cost
///
/// A match takes 100 ns to 300 ns for 1,000 conditions, depending on the processor, on a path that
/// was never seen before. It is linear in the length of the path, and in the number of patterns
/// divided by 64. Only a pattern with several `**` costs more: if a path matches it at both ends,
/// each component of the path is looked at once more. A path that may be read in several ways is
/// matched by each of them, of which there are at most 8: see [`PathReading`](crate::PathReading).
/// Other matches do not allocate.
///
/// Memory: a row of one bit for each pattern, for each value that a condition names, and for each
/// position of each component of a pattern. About 0.2 MB for 1,000 patterns. It grows with the
/// square of their number, and is at most 256 MiB.
///
/// ```
/// use portcullis_policy::{Conditions, Matcher, PathRules, Request};
///
/// let conditions = [
///     Conditions::new().paths(["/v1/**/_manifests"]).methods(["GET"]),
///     Conditions::new().paths(["/v1/**"]),
/// ];
/// let matcher = Matcher::new(&conditions, PathRules::new()).unwrap();
/// let first = |method, path| matcher.first(&Request::new(method, path));
/// assert_eq!(first("GET", "/v1/a/b/_manifests"), Ok(Some(0)));
/// assert_eq!(first("PUT", "/v1/a/b/_manifests"), Ok(Some(1)));
/// assert_eq!(first("PUT", "/v2"), Ok(None));
/// ```
pub struct Matcher {
    path_rules: PathRules,
    conditions: Box<[Parsed]>,
    entries: Box<[Entry]>,
    middles: Box<[Middle]>,
    /// Words of a row, a multiple of `BLOCK`.
    words: usize,
    rows: Vec<u64>,
    kinds: [Row; Kind::ALL.len()],
    methods: Choice,
    tiers: Choice,
    properties: Box<[(Box<str>, Choice)]>,
    hosts: Hosts,
    networks: Networks,
    paths: Paths,
}

#[derive(Clone, Copy)]
struct Entry {
    condition: u32,
    /// The index of the middle of a pattern with several `**`, or `NO_MIDDLE`.
    middle: u32,
}

const NO_MIDDLE: u32 = u32::MAX;

/// What a pattern with several `**` has between the first and the last one: chunks of parts, which
/// a path must contain in their order.
///
/// Each part has a bit. A bit of the state is set if the part and those before it in its chunk
/// match the last components. So one shift, one union and one intersection for each component of a
/// path try all places of a chunk at once. Each chunk takes the first place where it ends: a later
/// place would leave the next chunks less room.
struct Middle {
    /// The number of components before it, and after it.
    around: (usize, usize),
    /// The parts that match any component that is not empty.
    any: u64,
    /// The parts that match a component, by its symbol.
    literals: Box<[(u32, u64)]>,
    /// The last part of each chunk.
    ends: u64,
}

impl Middle {
    /// Of a pattern that has a middle.
    fn of(pattern: &Pattern, symbols: &Map<Box<[u8]>, u32>) -> Option<Self> {
        let rest = pattern
            .rest
            .as_ref()
            .filter(|rest| !rest.middle.is_empty())?;
        let (mut any, mut ends, mut bit) = (0, 0, 1_u64);
        let mut literals: Vec<(u32, u64)> = Vec::new();
        for chunk in &rest.middle {
            for part in chunk {
                match part {
                    Part::Any => any |= bit,
                    Part::Literal(text) => {
                        let symbol = symbols[text];
                        match literals.iter_mut().find(|(known, _)| *known == symbol) {
                            Some((_, parts)) => *parts |= bit,
                            None => literals.push((symbol, bit)),
                        }
                    }
                }
                bit <<= 1;
            }
            ends |= bit >> 1;
        }
        Some(Self {
            around: (pattern.prefix.len(), rest.suffix.len()),
            any,
            literals: literals.into(),
            ends,
        })
    }

    /// Whether it is in a path that is long enough for the pattern.
    fn is_in(&self, path: &[u32]) -> bool {
        let (before, after) = self.around;
        let (mut start, mut ends, mut state) = (1, self.ends, 0);
        for symbol in &path[before..path.len() - after] {
            let literal = self.literals.iter().find(|(known, _)| known == symbol);
            let any = if *symbol == EMPTY { 0 } else { self.any };
            let parts = any | literal.map_or(0, |(_, parts)| *parts);
            state = (state << 1 | start) & parts;
            let end = ends & ends.wrapping_neg();
            if state & end != 0 {
                ends ^= end;
                (start, state) = (end << 1, 0);
                if ends == 0 {
                    return true;
                }
            }
        }
        false
    }
}

/// The symbol of the empty component, which some readings of a path have.
const EMPTY: u32 = 1;

/// The symbols of the components of a path.
struct Symbols {
    all: [u32; MAX_COMPONENTS],
    len: usize,
}

/// The rows of one dimension with exact values.
struct Choice {
    rows: Map<Box<str>, Row>,
    other: Row,
}

impl Choice {
    #[inline]
    fn row(&self, value: &str) -> Row {
        if self.rows.is_empty() {
            self.other
        } else {
            self.rows.get(value).copied().unwrap_or(self.other)
        }
    }
}

/// The rows of names of hosts. A row includes the entries of all names that cover its name.
struct Hosts {
    exact: Map<Box<str>, Row>,
    below: Map<Box<str>, Row>,
    other: Row,
}

impl Hosts {
    #[inline]
    fn row(&self, host: &str) -> Row {
        if self.exact.is_empty() && self.below.is_empty() {
            return self.other;
        }
        let host = host_name(host);
        // A name and the dot before it. More of a longer host makes no difference, so no host takes
        // long.
        let from = host.len().saturating_sub(MAX_HOST_LEN + 1);
        let (is_whole, end) = (from == 0, &host[host.ceil_char_boundary(from)..]);
        let mut lower = [0; MAX_HOST_LEN + 1];
        let end = if end.bytes().any(|byte| byte.is_ascii_uppercase()) {
            let lower = &mut lower[..end.len()];
            lower.copy_from_slice(end.as_bytes());
            lower.make_ascii_lowercase();
            str::from_utf8(lower).unwrap_or_default()
        } else {
            end
        };
        if is_whole && let Some(&row) = self.exact.get(end) {
            return row;
        }
        if self.below.is_empty() {
            return self.other;
        }
        let mut dots = end
            .match_indices('.')
            .filter(|&(at, _)| at > 0 || !is_whole);
        dots.find_map(|(at, _)| self.below.get(&end[at + 1..]).copied())
            .unwrap_or(self.other)
    }
}

/// The rows of networks: the addresses in ranges, each with the entries of the networks that
/// contain it.
struct Networks {
    /// Where ranges begin, in order. The first is the lowest address.
    starts: Box<[Place]>,
    rows: Box<[Row]>,
    /// The row without any entry, for requests without an address.
    none: Row,
}

/// A place in the order of all addresses: those of IPv4, then those of IPv6.
type Place = (bool, u128);

const fn place(address: IpAddr) -> Place {
    match address {
        IpAddr::V4(address) => (false, address.to_bits() as u128),
        IpAddr::V6(address) => (true, address.to_bits()),
    }
}

impl Networks {
    #[inline]
    fn row(&self, address: Option<IpAddr>) -> Row {
        match address {
            Some(address) if !self.starts.is_empty() => {
                let place = place(address.to_canonical());
                let after = self.starts.partition_point(|&start| start <= place);
                self.rows[after - 1]
            }
            _ => self.none,
        }
    }
}

/// The rows of paths.
struct Paths {
    /// Numbers of components that occur in patterns, and of the empty one. All others are 0.
    symbols: Map<Box<[u8]>, u32>,
    /// Rows by number of components; the last is for all larger numbers.
    lengths: Box<[Row]>,
    first: Depths,
    last: Depths,
}

/// Rows by symbol and position.
struct Depths {
    depth: usize,
    rows: Box<[Row]>,
}

impl Depths {
    #[inline]
    fn row(&self, symbol: u32, at: usize) -> Row {
        self.rows[symbol as usize * self.depth + at]
    }
}

/// The rows that a request selects.
struct Selected {
    rows: [Row; MAX_ROWS],
    len: usize,
}

impl Selected {
    #[inline]
    fn add(&mut self, row: Row) {
        // Written in any case, and counted only if it matters. There is room for all rows.
        self.rows[self.len] = row;
        self.len += usize::from(row != ALL);
    }
}

impl Matcher {
    /// Compiles conditions. Their order is that in which they match.
    ///
    /// # Errors
    ///
    /// All errors of all conditions, in their order. Or [`Problem::TooLarge`], if conditions list
    /// more than 4,194,304 pairs of a pattern and another value, or the rows are larger than 256
    /// MiB.
    ///
    /// ```
    /// # use portcullis_policy::{Conditions, Matcher, PathRules};
    /// let conditions = [Conditions::new().paths(["/a*", "/b?"])];
    /// assert_eq!(Matcher::new(&conditions, PathRules::new()).unwrap_err().len(), 2);
    /// ```
    pub fn new(
        conditions: &[Conditions],
        path_rules: PathRules,
    ) -> Result<Self, Vec<ConditionError>> {
        let mut errors = Vec::new();
        let parsed: Box<[Parsed]> = conditions
            .iter()
            .enumerate()
            .map(|(index, conditions)| conditions.parse(index, path_rules, &mut errors))
            .collect();
        let mut names: Vec<Box<str>> = Vec::new();
        for (index, parsed) in parsed.iter().enumerate() {
            for (name, _) in &parsed.properties {
                if !names.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                    names.push(name.clone());
                    if names.len() > MAX_PROPERTIES {
                        errors.push(ConditionError {
                            index,
                            setting: "properties",
                            value: name.to_string(),
                            problem: Problem::TooManyProperties,
                        });
                    }
                }
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let too_large = |(index, patterns, values): (usize, usize, usize)| {
            vec![ConditionError {
                index,
                setting: "paths",
                value: format!("{patterns} patterns and {values} values"),
                problem: Problem::TooLarge,
            }]
        };
        let mut pairs = 0_usize;
        for (index, parsed) in parsed.iter().enumerate() {
            let (patterns, values) = (parsed.patterns.len().max(1), parsed.values());
            pairs = pairs.saturating_add(patterns.saturating_mul(values));
            if pairs > MAX_PAIRS {
                return Err(too_large((index, patterns, values)));
            }
        }
        let sizes = parsed
            .iter()
            .map(|parsed| (parsed.patterns.len().max(1), parsed.values()));
        let all = sizes.fold((0, 0), |all, own| (all.0 + own.0, all.1 + own.1));
        let last = parsed.len().saturating_sub(1);
        compile(parsed, &names, path_rules).ok_or_else(|| too_large((last, all.0, all.1)))
    }

    /// Returns the index of the first conditions that the request meets.
    ///
    /// # Errors
    ///
    /// [`PathError`] if the path is too long to be matched, or its readings disagree: some meet
    /// conditions that others do not.
    ///
    /// ```
    /// # use portcullis_policy::{Conditions, Matcher, PathRules, Request};
    /// let matcher = Matcher::new(&[Conditions::new().paths(["/a"])], PathRules::new()).unwrap();
    /// assert_eq!(matcher.first(&Request::new("GET", "/a?b")), Ok(Some(0)));
    /// assert_eq!(matcher.first(&Request::new("GET", "/b")), Ok(None));
    /// ```
    #[inline]
    pub fn first(&self, request: &Request<'_>) -> Result<Option<usize>, PathError> {
        let mut first = None;
        self.visit(request, |index| {
            first = Some(index);
            ControlFlow::Break(())
        })?;
        Ok(first)
    }

    /// Calls `found` with the index of each of the conditions that the request meets, in order,
    /// until `found` returns [`ControlFlow::Break`].
    ///
    /// # Errors
    ///
    /// [`PathError`] if the path is too long to be matched, or its readings disagree. Then `found`
    /// was not called.
    ///
    /// ```
    /// # use core::ops::ControlFlow;
    /// # use portcullis_policy::{Conditions, Matcher, PathRules, Request};
    /// let conditions = ["/a", "/b", "/*"].map(|path| Conditions::new().paths([path]));
    /// let matcher = Matcher::new(&conditions, PathRules::new()).unwrap();
    /// let mut found = Vec::new();
    /// matcher.visit(&Request::new("GET", "/a"), |index| {
    ///     found.push(index);
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(found, [0, 2]);
    /// # Ok::<(), portcullis_policy::PathError>(())
    /// ```
    #[inline]
    pub fn visit(
        &self,
        request: &Request<'_>,
        mut found: impl FnMut(usize) -> ControlFlow<()>,
    ) -> Result<(), PathError> {
        if let Some(plain) = self.path_rules.plain(request.path) {
            self.visit_as(plain, request, found)
        } else {
            self.visit_agreed(request, &mut found)
        }
    }

    /// As [`visit`](Self::visit), for a path that may have several readings.
    #[cold]
    #[inline(never)]
    fn visit_agreed(
        &self,
        request: &Request<'_>,
        found: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<(), PathError> {
        let readings = self.path_rules.readings(request.path)?;
        let first = readings.first();
        let met = |reading| {
            let mut met = Vec::new();
            let visited = self.visit_as(reading, request, |index| {
                met.push(index);
                ControlFlow::Continue(())
            });
            visited.map(|()| met)
        };
        if readings.are_several() {
            let of_first = met(first)?;
            for other in readings.iter().skip(1) {
                if met(other)? != of_first {
                    return Err(PathError::Ambiguous);
                }
            }
        }
        self.visit_as(first, request, found)
    }

    /// As [`visit`](Self::visit), by one reading of the path.
    #[inline]
    pub(crate) fn visit_as(
        &self,
        reading: Reading,
        request: &Request<'_>,
        mut found: impl FnMut(usize) -> ControlFlow<()>,
    ) -> Result<(), PathError> {
        reading.with(request.path, |path| {
            let mut selected = Selected {
                rows: [ALL; MAX_ROWS],
                len: 0,
            };
            self.select_path(reading, path, &mut selected)?;
            selected.add(self.kinds[request.kind as usize]);
            selected.add(self.methods.row(request.method));
            selected.add(self.tiers.row(request.tier));
            for (name, values) in &self.properties {
                let value = request.properties.value(name);
                selected.add(value.map_or(values.other, |value| values.row(value)));
            }
            let host = self.hosts.row(request.host);
            let network = self.networks.row(request.address);
            let (mut last, mut symbols) = (None, None);
            self.intersect(&selected.rows[..selected.len], (host, network), |entry| {
                let Entry { condition, middle } = self.entries[entry];
                if last == Some(condition)
                    || middle != NO_MIDDLE && !self.has_middle(middle, reading, path, &mut symbols)
                {
                    return ControlFlow::Continue(());
                }
                last = Some(condition);
                found(condition as usize)
            });
            Ok(())
        })?
    }

    /// Returns the first condition with this index that the request does not meet, or `None` if it
    /// meets all. Judges them one by one, so the result explains why something does not match.
    ///
    /// # Errors
    ///
    /// [`PathError`] if the path is too long to be matched, or its readings disagree.
    ///
    /// # Panics
    ///
    /// If there are no conditions with this index.
    ///
    /// # Cost
    ///
    /// Linear in the number of values of these conditions. Allocates.
    ///
    /// ```
    /// # use portcullis_policy::{Conditions, Matcher, Mismatch, PathRules, Request};
    /// let matcher = Matcher::new(&[Conditions::new().tiers(["paid"])], PathRules::new()).unwrap();
    /// let request = Request::new("GET", "/").tier("free");
    /// assert_eq!(matcher.mismatch(0, &request), Ok(Some(Mismatch::Tier)));
    /// ```
    pub fn mismatch(
        &self,
        index: usize,
        request: &Request<'_>,
    ) -> Result<Option<Mismatch<'_>>, PathError> {
        let readings = self.path_rules.readings(request.path)?;
        let mut all = readings.iter().map(|reading| {
            reading.with(request.path, |path| {
                let path: Vec<_> = reading.components(path).collect();
                self.mismatch_on(index, request, &path)
            })
        });
        let first = all.next().expect("a path has a reading")?;
        for other in all {
            if other?.is_none() != first.is_none() {
                return Err(PathError::Ambiguous);
            }
        }
        Ok(first)
    }

    /// As [`mismatch`](Self::mismatch), for the components of the request's path.
    pub(crate) fn mismatch_on(
        &self,
        index: usize,
        request: &Request<'_>,
        path: &[&[u8]],
    ) -> Option<Mismatch<'_>> {
        self.conditions[index].mismatch(request, path)
    }

    /// Adds the rows of a path.
    #[inline]
    fn select_path(
        &self,
        reading: Reading,
        path: &[u8],
        selected: &mut Selected,
    ) -> Result<(), PathError> {
        let Paths {
            symbols,
            lengths,
            first,
            last,
        } = &self.paths;
        // The symbols of the last components, at their positions modulo the size of this array.
        let mut ring = [0; MAX_PATTERN_COMPONENTS];
        let mut len = 0;
        for component in reading.components(path) {
            let symbol = symbols.get(component).copied().unwrap_or(0);
            if len < first.depth {
                selected.add(first.row(symbol, len));
            }
            ring[len % MAX_PATTERN_COMPONENTS] = symbol;
            len += 1;
            if len > MAX_COMPONENTS {
                return Err(PathError::TooManyComponents);
            }
        }
        selected.add(lengths[len.min(lengths.len() - 1)]);
        for at in 0..len.min(last.depth) {
            let symbol = ring[(len - 1 - at) % MAX_PATTERN_COMPONENTS];
            selected.add(last.row(symbol, at));
        }
        Ok(())
    }

    #[inline]
    fn block(&self, row: Row, at: usize) -> &[u64; BLOCK] {
        let from = row as usize * self.words + at;
        let block = self.rows[from..].first_chunk();
        block.expect("a row consists of whole blocks")
    }

    /// Calls `found` with each entry whose bit is set in all `rows`, and in one of `either`.
    #[inline]
    fn intersect(
        &self,
        rows: &[Row],
        either: (Row, Row),
        mut found: impl FnMut(usize) -> ControlFlow<()>,
    ) {
        for at in (0..self.words).step_by(BLOCK) {
            let (mut bits, other) = (*self.block(either.0, at), self.block(either.1, at));
            for (bits, other) in bits.iter_mut().zip(other) {
                *bits |= other;
            }
            for &row in rows {
                for (bits, row) in bits.iter_mut().zip(self.block(row, at)) {
                    *bits &= row;
                }
            }
            for (word, mut bits) in (at..).zip(bits) {
                while bits != 0 {
                    let entry = word * 64 + bits.trailing_zeros() as usize;
                    if found(entry).is_break() {
                        return;
                    }
                    bits &= bits - 1;
                }
            }
        }
    }

    /// Whether a path that matches a pattern at both ends matches it in the middle. The symbols of
    /// the path are looked up for the first pattern.
    #[cold]
    #[inline(never)]
    fn has_middle(
        &self,
        middle: u32,
        reading: Reading,
        path: &[u8],
        symbols: &mut Option<Symbols>,
    ) -> bool {
        let symbols = symbols.get_or_insert_with(|| {
            let (mut all, mut len) = ([0; MAX_COMPONENTS], 0);
            for (symbol, component) in all.iter_mut().zip(reading.components(path)) {
                *symbol = self.paths.symbols.get(component).copied().unwrap_or(0);
                len += 1;
            }
            Symbols { all, len }
        });
        self.middles[middle as usize].is_in(&symbols.all[..symbols.len])
    }
}

shows!([] Matcher, "Matcher", self:
    "conditions" => self.conditions.len(),
    "patterns" => self.entries.len(),
    "bytes" => (8 * self.rows.len())
);

/// The rows while they are collected. Equal rows are stored once.
struct Rows {
    words: usize,
    bits: Vec<u64>,
    known: Map<Box<[u64]>, Row>,
    /// The most words of all rows.
    most_words: usize,
    /// Whether rows are missing, because there would be more words.
    is_full: bool,
}

impl Rows {
    /// A row with the bits of the entries for which `is_set` holds.
    fn of(&mut self, entries: usize, is_set: impl FnMut(usize) -> bool) -> Row {
        if self.is_full {
            return ALL;
        }
        let bits = self.bits_of((0..entries).map(is_set));
        self.add(bits)
    }

    fn bits_of(&self, set: impl Iterator<Item = bool>) -> Vec<u64> {
        let mut bits = vec![0; self.words];
        for (entry, set) in set.enumerate() {
            bits[entry / 64] |= u64::from(set) << (entry % 64);
        }
        bits
    }

    fn add(&mut self, bits: Vec<u64>) -> Row {
        if let Some(&row) = self.known.get(&bits[..]) {
            return row;
        }
        if self.bits.len() + bits.len() > self.most_words {
            self.is_full = true;
            return ALL;
        }
        let row = self.known.len() as Row;
        self.bits.extend(&bits);
        self.known.insert(bits.into(), row);
        row
    }
}

/// The values of one dimension, each with the entries that list it.
struct Values<K> {
    listed: Map<K, Vec<usize>>,
    /// Entries that do not restrict the dimension.
    open: Vec<bool>,
}

impl<K: Hash + Eq> Values<K> {
    fn of<'p>(entries: &[&'p Parsed], values: impl Fn(&'p Parsed) -> Vec<K>) -> Self {
        let (mut listed, mut open) = (Map::<K, Vec<usize>>::default(), Vec::new());
        for (entry, &parsed) in entries.iter().enumerate() {
            let values = values(parsed);
            open.push(values.is_empty());
            for value in values {
                listed.entry(value).or_default().push(entry);
            }
        }
        Self { listed, open }
    }

    fn rows(self, rows: &mut Rows) -> (Map<K, Row>, Row) {
        let open = rows.bits_of(self.open.into_iter());
        let with = |(value, entries): (K, Vec<usize>)| {
            // Not for each of very many values, to be refused in the end.
            if rows.is_full {
                return (value, ALL);
            }
            let mut bits = open.clone();
            for entry in entries {
                bits[entry / 64] |= 1 << (entry % 64);
            }
            (value, rows.add(bits))
        };
        let listed = self.listed.into_iter().map(with).collect();
        (listed, rows.add(open))
    }
}

fn choice<'p>(
    entries: &[&'p Parsed],
    rows: &mut Rows,
    values: impl Fn(&'p Parsed) -> Vec<Box<str>>,
) -> Choice {
    let (rows, other) = Values::of(entries, values).rows(rows);
    Choice { rows, other }
}

/// Returns `None` if the rows take too much memory.
fn compile(
    conditions: Box<[Parsed]>,
    properties: &[Box<str>],
    path_rules: PathRules,
) -> Option<Matcher> {
    let everything = Pattern::parse("/**", path_rules).expect("a valid pattern");
    let (mut entries, patterns) = entries(&conditions, &everything);
    let symbols = symbols(&patterns);
    let mut middles = Vec::new();
    for (entry, pattern) in entries.iter_mut().zip(&patterns) {
        if let Some(middle) = Middle::of(pattern, &symbols) {
            entry.middle = middles.len() as u32;
            middles.push(middle);
        }
    }
    let len = entries.len();
    let of = |entry: &Entry| &conditions[entry.condition as usize];
    let of: Vec<&Parsed> = entries.iter().map(of).collect();
    let mut rows = Rows {
        words: len.div_ceil(64).next_multiple_of(BLOCK),
        bits: Vec::new(),
        known: Map::default(),
        most_words: MAX_WORDS,
        is_full: false,
    };
    let all = rows.of(len, |_| true);
    debug_assert_eq!(all, ALL);
    let kinds = Kind::ALL.map(|kind| rows.of(len, |entry| of[entry].kind == kind));
    let methods = choice(&of, &mut rows, |parsed| parsed.methods.clone());
    let tiers = choice(&of, &mut rows, |parsed| parsed.tiers.clone());
    let mut choice_of = |name: &str| {
        let values = |parsed: &Parsed| {
            let mut all = parsed.properties.iter();
            let own = all.find(|(own, _)| own.eq_ignore_ascii_case(name));
            own.map_or(Vec::new(), |(_, values)| values.clone())
        };
        (name.into(), choice(&of, &mut rows, values))
    };
    let properties = properties.iter().map(|name| choice_of(name)).collect();
    let hosts = hosts(&of, &mut rows);
    let networks = networks(&of, &mut rows);
    let paths = paths(&patterns, symbols, &mut rows);
    let (words, is_full, rows) = (rows.words, rows.is_full, rows.bits);
    (!is_full).then(|| Matcher {
        path_rules,
        entries: entries.into(),
        middles: middles.into(),
        words,
        rows,
        kinds,
        methods,
        tiers,
        properties,
        hosts,
        networks,
        paths,
        conditions,
    })
}

/// Returns an entry for each pattern of each condition, and the patterns. `everything` is that of a
/// condition without patterns.
fn entries<'p>(
    conditions: &'p [Parsed],
    everything: &'p Pattern,
) -> (Vec<Entry>, Vec<&'p Pattern>) {
    let (mut entries, mut patterns) = (Vec::new(), Vec::new());
    for (condition, parsed) in (0..).zip(conditions) {
        let of_all = parsed.patterns.is_empty().then_some(everything);
        for pattern in of_all.into_iter().chain(&parsed.patterns) {
            let middle = NO_MIDDLE;
            entries.push(Entry { condition, middle });
            patterns.push(pattern);
        }
    }
    (entries, patterns)
}

fn hosts(entries: &[&Parsed], rows: &mut Rows) -> Hosts {
    let anywhere = |parsed: &&Parsed| parsed.names.is_empty() && parsed.networks.is_empty();
    let open = rows.bits_of(entries.iter().map(anywhere));
    let (mut exact, mut below) = (Map::<_, Vec<usize>>::default(), Map::default());
    for (entry, parsed) in entries.iter().enumerate() {
        for name in &parsed.names {
            let (map, host) = match name {
                HostName::Exact(host) => (&mut exact, host),
                HostName::Below(host) => (&mut below, host),
            };
            map.entry(&**host).or_default().push(entry);
        }
    }
    // The entries of a name, and those of all names below which it is.
    let mut row = |host: &str, own: &[usize]| {
        if rows.is_full {
            return (host.into(), ALL);
        }
        let dots = host.match_indices('.');
        let above = dots.filter_map(|(dot, _)| below.get(&host[dot + 1..]));
        let mut bits = open.clone();
        for &entry in above.flatten().chain(own) {
            bits[entry / 64] |= 1 << (entry % 64);
        }
        (host.into(), rows.add(bits))
    };
    let mut row_of_each = |names: &Map<&str, Vec<usize>>| {
        let names = names.iter();
        names.map(|(host, own)| row(host, own)).collect()
    };
    let (exact, below) = (row_of_each(&exact), row_of_each(&below));
    Hosts {
        exact,
        below,
        other: rows.add(open),
    }
}

fn networks(entries: &[&Parsed], rows: &mut Rows) -> Networks {
    // Where networks begin and end, and whose they are.
    let mut ends: Vec<(Place, bool, usize)> = Vec::new();
    for (entry, parsed) in entries.iter().enumerate() {
        for network in &parsed.networks {
            let (version, last) = place(network.broadcast());
            ends.push((place(network.network()), true, entry));
            if let Some(after) = last.checked_add(1) {
                ends.push(((version, after), false, entry));
            }
        }
    }
    let none = rows.of(entries.len(), |_| false);
    let (mut starts, mut of_ranges) = (Vec::new(), Vec::new());
    if !ends.is_empty() {
        starts.push((false, 0));
        of_ranges.push(none);
    }
    ends.sort_unstable();
    // The networks of each entry that contain the present range.
    let mut counts = vec![0_u32; entries.len()];
    let mut bits = rows.bits_of(core::iter::empty());
    for range in ends.chunk_by(|a, b| a.0 == b.0) {
        for &(_, begins, entry) in range {
            if begins {
                counts[entry] += 1;
            } else {
                counts[entry] -= 1;
            }
            let bit = 1 << (entry % 64);
            if counts[entry] == 0 {
                bits[entry / 64] &= !bit;
            } else {
                bits[entry / 64] |= bit;
            }
        }
        if rows.is_full {
            break;
        }
        starts.push(range[0].0);
        of_ranges.push(rows.add(bits.clone()));
    }
    Networks {
        starts: starts.into(),
        rows: of_ranges.into(),
        none,
    }
}

/// Numbers the empty component and the literal ones of all patterns, from [`EMPTY`].
fn symbols(patterns: &[&Pattern]) -> Map<Box<[u8]>, u32> {
    let mut symbols = Map::default();
    symbols.insert(Box::default(), EMPTY);
    for pattern in patterns {
        let rest = pattern.rest.iter();
        let rest = rest.flat_map(|rest| rest.middle.iter().chain([&rest.suffix]));
        for part in [&pattern.prefix].into_iter().chain(rest).flatten() {
            if let Part::Literal(text) = part {
                let next = symbols.len() as u32 + 1;
                symbols.entry(text.clone()).or_insert(next);
            }
        }
    }
    symbols
}

fn paths(patterns: &[&Pattern], symbols: Map<Box<[u8]>, u32>, rows: &mut Rows) -> Paths {
    let first = |pattern: &Pattern, at: usize| pattern.prefix.get(at).cloned();
    let last = |pattern: &Pattern, at: usize| {
        let suffix = &pattern.rest.as_ref()?.suffix;
        suffix
            .len()
            .checked_sub(at + 1)
            .map(|at| suffix[at].clone())
    };
    let depth_of = |pattern: &&Pattern| {
        let suffix = pattern.rest.as_ref().map_or(0, |rest| rest.suffix.len());
        (pattern.prefix.len(), suffix)
    };
    let (mut depth_first, mut depth_last) = (0, 0);
    for (prefix, suffix) in patterns.iter().map(depth_of) {
        depth_first = depth_first.max(prefix);
        depth_last = depth_last.max(suffix);
    }
    let longest = patterns
        .iter()
        .map(|pattern| pattern.min_len())
        .max()
        .unwrap_or(0);
    let fits = |len| {
        move |entry: usize| {
            let pattern: &Pattern = patterns[entry];
            match pattern.rest {
                Some(_) => len >= pattern.min_len(),
                None => len == pattern.min_len(),
            }
        }
    };
    let lengths = (0..=longest + 1)
        .map(|len| rows.of(patterns.len(), fits(len)))
        .collect();
    Paths {
        first: depths(patterns, depth_first, &symbols, rows, first),
        last: depths(patterns, depth_last, &symbols, rows, last),
        symbols,
        lengths,
    }
}

/// The rows of the components at each position, counted from one end.
fn depths(
    patterns: &[&Pattern],
    depth: usize,
    symbols: &Map<Box<[u8]>, u32>,
    rows: &mut Rows,
    part: impl Fn(&Pattern, usize) -> Option<Part>,
) -> Depths {
    let mut all = vec![ALL; (symbols.len() + 1) * depth];
    for at in 0..depth {
        let mut listed: Map<u32, Vec<usize>> = Map::default();
        let mut open = Vec::new();
        for (entry, pattern) in patterns.iter().enumerate() {
            match part(pattern, at) {
                Some(Part::Literal(text)) => {
                    listed.entry(symbols[&text]).or_default().push(entry);
                    open.push(false);
                }
                Some(Part::Any) | None => open.push(true),
            }
        }
        // The patterns that end before this component, or name the empty one.
        let empty = rows.of(patterns.len(), |entry| match part(patterns[entry], at) {
            Some(Part::Literal(text)) => text.is_empty(),
            Some(Part::Any) => false,
            None => true,
        });
        let (listed, other) = Values { listed, open }.rows(rows);
        for symbol in 0..=symbols.len() {
            let row = listed.get(&(symbol as u32)).copied().unwrap_or(other);
            all[symbol * depth + at] = row;
        }
        all[EMPTY as usize * depth + at] = empty;
    }
    Depths {
        depth,
        rows: all.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_beyond_the_largest_size_are_noted_and_not_stored() {
        let mut rows = Rows {
            words: BLOCK,
            bits: Vec::new(),
            known: Map::default(),
            most_words: 3 * BLOCK,
            is_full: false,
        };
        let added: Vec<Row> = (0..3).map(|one| rows.of(3, |entry| entry == one)).collect();
        assert_eq!((added, rows.is_full), (vec![0, 1, 2], false));
        assert_eq!((rows.of(3, |entry| entry == 1), rows.is_full), (1, false));
        assert_eq!((rows.of(3, |_| true), rows.is_full), (ALL, true));
        assert_eq!(rows.bits.len(), 3 * BLOCK);
    }
}
