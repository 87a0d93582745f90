//! See `portcullis_fuzz::targets::policy_toml`.

#![cfg_attr(fuzzing, no_main)]

portcullis_fuzz::program!(policy_toml);
