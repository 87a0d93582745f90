//! Checks a guarantee in the machine code: a grant or a release makes one successful atomic write,
//! and no path contains a division, a call, a trap or a panic.

use crate::asm::{self, Facts, Function};
use crate::command::Check;
use crate::context::Context;
use crate::listing;

/// A function in the core's example `hot_paths`, and its allowance.
pub(crate) struct HotPath {
    pub(crate) name: &'static str,
    /// The most successful atomic writes in one call, not counting its cold parts.
    writes: usize,
    /// Functions for rare cases, by their names in the core. They must not divide, trap or panic
    /// either.
    cold: &'static [&'static str],
}

const fn path(name: &'static str, writes: usize, cold: &'static [&'static str]) -> HotPath {
    HotPath { name, writes, cold }
}

/// The paths of all limiters, and special paths.
pub(crate) const HOT_PATHS: &[HotPath] = {
    macro_rules! hot_paths {
        ($($_limiter:ident: $_type:ty {
            on: [$($name:ident: $_word:ty),*],
            new: $_new:tt,
            on_board: $_board:tt,
            back: $_back:ident,
            denial: $_denial:ident,
            refunds: $_refunds:tt,
            saves: $_saves:tt,
            hot_path: { writes: $writes:literal, cold: $cold:tt },
            $($_rest:tt)*
        })*) => {
            &[
                $($(path(concat!(stringify!($name), "_acquire"), $writes, &$cold),)*)*
                path("token_bucket_drop", 0, &[]),
                path("concurrency_drop", 1, &[]),
                path("concurrency_32_drop", 1, &[]),
                path("striped_concurrency_drop", 1, &["give_back_slowly", "finish", "first"]),
                path("slice_acquire", 0, &["draw"]),
                path("slice_32_acquire", 0, &["draw"]),
                path("share_acquire", 1, &["see_returned"]),
                path("share_32_acquire", 1, &["see_returned"]),
                path("keyed_bucket_acquire", 1, KEYED),
                path("keyed_window_acquire", 1, KEYED),
                // One write for each limit.
                path("keyed_list_acquire", 3, KEYED_LIST),
                path("token_bucket_within", 1, &[]),
                path("token_bucket_32_within", 1, &[]),
                path("fixed_window_within", 1, &["elsewhere"]),
                path("sliding_window_within", 2, &["expired", "roll"]),
                path("warming_bucket_within", 1, &[]),
                path("concurrency_within", 1, &[]),
                path("keyed_bucket_within", 1, KEYED),
                // Two writes, because a pool also marks its slot.
                path("lease_pool_claim", 2, &["search"]),
                path("lease_pool_release", 2, &[]),
            ]
        };
    }
    for_each_limiter!(hot_paths)
};

/// Cold functions of tables: the key is not in its usual place, has no slot yet, or is not in this
/// window; or its line was not used for a long time.
const KEYED: &[&str] = &[
    "take_slowly",
    "find_far",
    "settle",
    "settle_words",
    "span",
    "has_rested",
    "passed",
    "has_room",
    "take_by_claim",
    "claim",
    "confirm",
    "hold",
    "withdraw",
    "elsewhere",
    "is_full_since",
    "is_forgettable",
    "FlattenCompat",
    "filter_map_try_fold",
];

/// The same, for tables with several limits for each key.
const KEYED_LIST: &[&str] = &[
    "take_slowly",
    "take_settled",
    "search",
    "settle",
    "settle_words",
    "span",
    "has_rested",
    "passed",
    "take_by_claim",
    "claim",
    "confirm",
    "hold",
    "withdraw",
    "undo",
    "is_free",
    "has_room",
    "is_full_since",
    "is_forgettable",
    "FlattenCompat",
];

pub(crate) fn check(context: &Context) -> Check {
    let assembly = listing::assembly(
        context,
        context.cargo(),
        &context.target_dir("hot-paths"),
        &[],
    )?;
    let functions = asm::functions(&assembly);
    let mut wrong = Vec::new();
    let mut cold = Cold::new();
    println!(
        "{}",
        row([
            "function",
            "instructions",
            "locked",
            "written",
            "divisions",
            "calls"
        ]
        .map(String::from))
    );
    for hot in HOT_PATHS {
        let function = find(&functions, hot.name)?;
        let facts = function.facts();
        show(hot.name, &facts);
        if facts.writes != Some(hot.writes) {
            let found = facts
                .writes
                .map_or("any number of".to_owned(), |writes| writes.to_string());
            wrong.push(format!(
                "{}: {found} atomic writes in a call, not {}",
                hot.name, hot.writes
            ));
        }
        wrong.extend(faults(hot.name, &facts, hot.cold));
        note(&mut cold, facts.calls, hot.cold);
    }
    // Cold functions may call cold functions.
    let mut seen = 0;
    while let Some((symbol, allowed)) = cold.get(seen).cloned() {
        seen += 1;
        // A call of a function that is defined elsewhere is already reported for its caller.
        if let Ok(function) = find(&functions, &symbol) {
            let (facts, name) = (function.facts(), short(&symbol, allowed));
            show(&format!("  {name}, cold"), &facts);
            wrong.extend(faults(&name, &facts, allowed));
            note(&mut cold, facts.calls, allowed);
        }
    }
    if wrong.is_empty() {
        Ok(format!("{} functions", HOT_PATHS.len()))
    } else {
        Err(wrong.join("; "))
    }
}

/// Returns the calls from a path that are not allowed.
type Cold = Vec<(String, &'static [&'static str])>;

fn note(cold: &mut Cold, calls: Vec<String>, allowed: &'static [&'static str]) {
    for call in calls {
        if !cold.contains(&(call.clone(), allowed)) {
            cold.push((call, allowed));
        }
    }
}

fn find<'a>(functions: &'a [Function], name: &str) -> Result<&'a Function, String> {
    functions
        .iter()
        .find(|function| function.name == name)
        .ok_or_else(|| format!("{name}: not in the assembly"))
}

/// Returns faults that are not allowed on any path, even a cold one.
fn faults(name: &str, facts: &Facts, allowed: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    if facts.divisions > 0 {
        faults.push(format!("{name}: {} divisions", facts.divisions));
    }
    if facts.traps > 0 {
        faults.push(format!("{name}: {} traps", facts.traps));
    }
    let forbidden = facts
        .calls
        .iter()
        .filter(|call| !allowed.iter().any(|cold| is_named(call, cold)))
        // The address of a thread-local. In a program, the linker replaces the call by an addition.
        .filter(|call| *call != "__tls_get_addr");
    faults.extend(forbidden.map(|call| format!("{name}: calls {call}")));
    faults
}

/// Returns whether a mangled symbol is the core's function `name`, or an iterator of Rust's with
/// that name, which may be compiled separately. Both mangling schemes write a name after its
/// length.
fn is_named(symbol: &str, name: &str) -> bool {
    let is_ours = symbol.contains("15portcullis_core");
    let is_iterator = symbol.contains("4iter") || symbol.contains("..iter..");
    is_ours && symbol.contains(&format!("{}{name}", name.len()))
        || is_iterator && symbol.contains(name)
}

fn short(symbol: &str, names: &[&str]) -> String {
    names
        .iter()
        .find(|name| is_named(symbol, name))
        .map_or(symbol, |name| name)
        .to_owned()
}

fn show(name: &str, facts: &Facts) {
    let writes = facts
        .writes
        .map_or("unbounded".to_owned(), |writes| writes.to_string());
    let (instructions, locked) = (facts.instructions.to_string(), facts.locked.to_string());
    let cells = [
        name.to_owned(),
        instructions,
        locked,
        writes,
        facts.divisions.to_string(),
        facts.calls.len().to_string(),
    ];
    println!("{}", row(cells));
}

fn row([name, instructions, locked, written, divisions, calls]: [String; 6]) -> String {
    format!("{name:28} {instructions:>12} {locked:>7} {written:>10} {divisions:>10} {calls:>6}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(body: &str) -> Vec<String> {
        let functions = asm::functions(&format!("f:\n{body}\n\t.size f, .-f\n"));
        faults("f", &functions[0].facts(), &["roll"])
    }

    #[test]
    fn only_cold_functions_of_the_core_may_be_called() {
        let roll = "_ZN15portcullis_core14sliding_window13SlidingWindow4roll17h97c344a5ab77c313E";
        assert!(faults_of(&format!("\tcallq {roll}\n\tretq")).is_empty());
        assert_eq!(
            faults_of("\tcallq _ZN4core9panicking5panic17h0E\n\tud2").len(),
            2
        );
        assert_eq!(faults_of("\tjmp _ZN5other4roll17h0E").len(), 1);
        assert_eq!(faults_of("\tdivq %rcx\n\tretq"), ["f: 1 divisions"]);
    }
}
