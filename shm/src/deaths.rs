//! Which members are dead, for one pass over slots.
//!
//! A number passes on: the next process that joins has the number of one that died. So "the member
//! with this number is dead" is true of one word only: one that was read *before* the question. Its
//! writer had the number when it wrote, and has it as long as it is alive. If nobody has the number
//! later, the writer is dead. A word that is read after the answer may be that of the next process.
//!
//! So a pass asks again for each word, as long as the answer is "dead"; such a word is then freed,
//! by an exchange of the whole word. The answer "alive" is kept for the pass: it frees nothing.

use crate::slots::MEMBERS;

/// Asks which members are dead.
#[derive(Debug)]
pub struct Deaths<A> {
    is_alive: A,
    /// What was said of each member the last time.
    said: [Option<bool>; MEMBERS],
}

impl<A: FnMut(usize) -> bool> Deaths<A> {
    /// Begins a pass of the member `me`, which is alive. `is_alive` says whether another one is.
    pub fn new(me: usize, is_alive: A) -> Self {
        let mut said = [None; MEMBERS];
        said[me % MEMBERS] = Some(true);
        Self { is_alive, said }
    }

    /// Whether the member is dead that wrote a word. Call it after the word was read, and exchange
    /// the word as a whole.
    pub fn is_dead(&mut self, member: usize) -> bool {
        let said = &mut self.said[member % MEMBERS];
        if *said != Some(true) {
            *said = Some((self.is_alive)(member));
        }
        *said == Some(false)
    }
}
