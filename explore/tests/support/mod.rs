//! What the explorers have in common: limiters with random settings, calls on them, and the
//! judgement of what came out.
#![allow(dead_code, reason = "each test uses a part")]

#[path = "../../../core/tests/support/draws.rs"]
pub(crate) mod draws;
pub(crate) mod judge;
pub(crate) mod op;
pub(crate) mod scenario;
pub(crate) mod subjects;
pub(crate) mod world;
