//! The program `portcullis`.
fn main() {}
