//! Reads the assembly that the compiler generates for `x86_64`, in enough detail to check a hot
//! path.

use std::collections::HashMap;

/// A function's instructions.
pub(crate) struct Function {
    pub(crate) name: String,
    instructions: Vec<String>,
    /// The position of each local label in the instructions.
    labels: HashMap<String, usize>,
}

/// The facts about a function that matter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) instructions: usize,
    /// The number of atomic read-modify-writes.
    pub(crate) locked: usize,
    /// The most of them that can succeed in one call; `None` if there is no bound.
    pub(crate) writes: Option<usize>,
    pub(crate) divisions: usize,
    /// The functions that are called or jumped to, in order, each once. A call through a register
    /// counts as a call of the function whose address was last loaded into the register; otherwise
    /// it is listed by its operand.
    pub(crate) calls: Vec<String>,
    /// The number of instructions that stop the program or enter the system.
    pub(crate) traps: usize,
}

/// Returns all functions in `assembly`.
pub(crate) fn functions(assembly: &str) -> Vec<Function> {
    let mut functions = Vec::new();
    let mut inside: Option<Function> = None;
    for line in assembly.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let text = line.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(label) = text.strip_suffix(':') {
            match &mut inside {
                Some(function) if label.starts_with(".L") => {
                    function
                        .labels
                        .insert(label.to_owned(), function.instructions.len());
                }
                _ if !label.starts_with(".L") => {
                    functions.extend(inside.replace(Function::new(label)));
                }
                _ => {}
            }
        } else if text.starts_with(".size ") {
            functions.extend(inside.take());
        } else if let Some(function) = &mut inside
            && !text.is_empty()
            && !text.starts_with('.')
        {
            function.push(text);
        }
    }
    // Data also has labels, but no instructions.
    functions.retain(|function| !function.instructions.is_empty());
    functions
}

impl Function {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            instructions: Vec::new(),
            labels: HashMap::new(),
        }
    }

    fn push(&mut self, text: String) {
        match self.instructions.last_mut() {
            // A prefix on a line of its own.
            Some(last) if last == "lock" => *last = format!("lock {text}"),
            _ => self.instructions.push(text),
        }
    }

    pub(crate) fn facts(&self) -> Facts {
        let count = |is: fn(&str) -> bool| self.instructions.iter().filter(|text| is(text)).count();
        let mut calls = Vec::new();
        for target in (0..self.instructions.len()).filter_map(|at| self.leaves_to(at)) {
            if !calls.contains(&target) {
                calls.push(target);
            }
        }
        Facts {
            instructions: self.instructions.len(),
            locked: count(is_locked),
            writes: self.writes(),
            divisions: count(|text| text.starts_with("div") || text.starts_with("idiv")),
            calls,
            traps: count(|text| {
                let mnemonic = text.split(' ').next().unwrap_or_default();
                ["ud2", "int3", "int", "syscall", "sysenter", "hlt"].contains(&mnemonic)
            }),
        }
    }

    /// Returns the function to which the instruction at `at` leaves this one.
    fn leaves_to(&self, at: usize) -> Option<String> {
        let (mnemonic, operand) = self.instructions[at].split_once(' ')?;
        let is_call = mnemonic.starts_with("call");
        let is_jump = mnemonic.starts_with('j') && !self.labels.contains_key(operand);
        let target = operand.trim_start_matches('*');
        let loaded = self.instructions[..at]
            .iter()
            .rfind(|text| text.contains(target));
        let name = match loaded
            .and_then(|text| text.strip_prefix("movq ")?.split_once("@GOTPCREL(%rip), "))
        {
            Some((name, register)) if register == target => name,
            _ => target.split('@').next().unwrap_or_default(),
        };
        (is_call || is_jump).then(|| name.to_owned())
    }

    /// Returns the most successful atomic writes on any path through the function. This is the
    /// longest path, where the edge of a failed compare-exchange costs nothing.
    fn writes(&self) -> Option<usize> {
        let mut most = vec![None; self.instructions.len()];
        let mut open = vec![(0, 0)];
        let mut longest = 0;
        while let Some((at, writes)) = open.pop() {
            // More writes than instructions: there is a loop that writes in each iteration.
            if writes > self.instructions.len() {
                return None;
            }
            longest = longest.max(writes);
            if at < most.len() && most[at].is_none_or(|known| known < writes) {
                most[at] = Some(writes);
                open.extend(
                    self.next(at)
                        .into_iter()
                        .map(|(next, more)| (next, writes + more)),
                );
            }
        }
        Some(longest)
    }

    /// Returns where execution continues after the instruction at `at`, and the number of writes on
    /// the way.
    fn next(&self, at: usize) -> Vec<(usize, usize)> {
        let text = &self.instructions[at];
        if is_locked(text) {
            return self
                .next_of_exchange(at)
                .unwrap_or_else(|| vec![(at + 1, 1)]);
        }
        let (mnemonic, operand) = text.split_once(' ').unwrap_or((text, ""));
        let target = self.labels.get(operand).map(|&target| (target, 0));
        match mnemonic {
            "ret" | "retq" | "ud2" => vec![],
            "jmp" | "jmpq" => target.into_iter().collect(),
            _ if mnemonic.starts_with('j') => target.into_iter().chain([(at + 1, 0)]).collect(),
            _ => vec![(at + 1, 0)],
        }
    }

    /// Returns the two exits of a compare-exchange whose result is tested immediately.
    fn next_of_exchange(&self, at: usize) -> Option<Vec<(usize, usize)>> {
        if !self.instructions[at].contains("cmpxchg") {
            return None;
        }
        let keeps_flags = |text: &str| {
            ["mov", "lea", "cmov", "push", "pop"]
                .iter()
                .any(|m| text.starts_with(m))
        };
        let mut jump = at + 1;
        loop {
            // A jump from elsewhere arrives with other flags.
            if self
                .labels
                .values()
                .any(|&label| label == jump && self.is_target(label))
            {
                return None;
            }
            let text = self.instructions.get(jump)?;
            let (mnemonic, operand) = text.split_once(' ')?;
            let taken = match mnemonic {
                "je" => 1,
                "jne" => 0,
                _ if keeps_flags(text) => {
                    jump += 1;
                    continue;
                }
                _ => return None,
            };
            let target = *self.labels.get(operand)?;
            return Some(vec![(target, taken), (jump + 1, 1 - taken)]);
        }
    }

    /// Returns whether an instruction jumps to `position`. (Labels for debuggers are not targets.)
    fn is_target(&self, position: usize) -> bool {
        self.instructions.iter().any(|text| {
            let operand = text.strip_prefix('j').and_then(|jump| jump.split_once(' '));
            operand.is_some_and(|(_, label)| self.labels.get(label) == Some(&position))
        })
    }
}

/// Returns whether an instruction is an atomic read-modify-write or a fence. An exchange with
/// memory is atomic without a prefix.
fn is_locked(text: &str) -> bool {
    text.starts_with("lock ")
        || (text.starts_with("xchg") && text.contains('('))
        || text == "mfence"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(body: &str) -> Facts {
        let assembly = format!(
            "\t.type f,@function\nf:\n.Lfunc_begin0:\n{body}\n.Lfunc_end0:\n\t.size f, .-f\n"
        );
        let functions = functions(&assembly);
        assert_eq!(functions.len(), 1);
        assert_eq!(functions[0].name, "f");
        functions[0].facts()
    }

    #[test]
    fn a_loop_around_a_compare_exchange_writes_once() {
        let body = "\tmovq (%rdi), %rax\n.LBB0_1:\n\tlea 1(%rax), %rcx\n\tlock\t\tcmpxchgq %rcx, (%rdi)\n\tjne .LBB0_1\n\tretq";
        let facts = facts(body);
        assert_eq!(
            (facts.locked, facts.writes, facts.divisions),
            (1, Some(1), 0)
        );
        assert_eq!((facts.instructions, facts.calls), (5, vec![]));
    }

    #[test]
    fn a_first_try_before_the_loop_is_not_counted_twice() {
        let body = "\tlock cmpxchgq %rcx, (%rdi)\n\tmovl %ecx, %edx\n\tje .LBB0_2\n\
                    .LBB0_1:\n\tlock cmpxchgq %rcx, (%rdi)\n\tjne .LBB0_1\n.LBB0_2:\n\tretq";
        let facts = facts(body);
        assert_eq!((facts.locked, facts.writes), (2, Some(1)));
    }

    #[test]
    fn two_writes_in_a_row_are_two() {
        let body =
            "\tlock\n\txaddq %rax, (%rdi)\n\txchgq %rax, 8(%rdi)\n\txchgq %rax, %rbx\n\tretq";
        assert_eq!(facts(body).writes, Some(2));
    }

    #[test]
    fn a_write_in_a_loop_has_no_bound() {
        assert_eq!(
            facts(".LBB0_1:\n\tlock incq (%rdi)\n\tjne .LBB0_1\n\tretq").writes,
            None
        );
    }

    #[test]
    fn a_branch_on_other_flags_than_those_of_the_exchange_counts_both_ways() {
        let body =
            ".LBB0_1:\n\tlock cmpxchgq %rcx, (%rdi)\n\ttestq %rax, %rax\n\tjne .LBB0_1\n\tretq";
        assert_eq!(facts(body).writes, None);
    }

    #[test]
    fn every_way_of_leaving_the_function_is_a_call() {
        let body = "\tcallq *other@GOTPCREL(%rip)\n\tjne .LBB0_1\n\tjmp tail@PLT\n.LBB0_1:\n\tcallq *%rax\n\tud2";
        let facts = facts(body);
        assert_eq!(facts.calls, ["other", "tail", "%rax"]);
        assert_eq!(facts.traps, 1);
    }

    #[test]
    fn a_call_through_a_register_is_a_call_of_the_function_loaded_into_it() {
        let load = "\tmovq other@GOTPCREL(%rip), %r11\n";
        assert_eq!(
            facts(&format!("{load}\tcallq *%r11\n\tretq")).calls,
            ["other"]
        );
        assert_eq!(
            facts(&format!("{load}\tmovq %rax, %r11\n\tcallq *%r11\n\tretq")).calls,
            ["%r11"]
        );
        assert_eq!(
            facts(&format!("{load}\tcallq *%rax\n\tretq")).calls,
            ["%rax"]
        );
    }

    #[test]
    fn divisions_are_seen() {
        assert_eq!(facts("\tdivq %rcx\n\tidivl %ecx\n\tretq").divisions, 2);
    }
}
