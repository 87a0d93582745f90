//! See `portcullis_fuzz::targets::lease_ids`.

#![cfg_attr(fuzzing, no_main)]

portcullis_fuzz::program!(lease_ids);
