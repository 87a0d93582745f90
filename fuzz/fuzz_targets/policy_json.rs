//! See `portcullis_fuzz::targets::policy_json`.

#![cfg_attr(fuzzing, no_main)]

portcullis_fuzz::program!(policy_json);
