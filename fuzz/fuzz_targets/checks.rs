//! See `portcullis_fuzz::targets::checks`.

#![cfg_attr(fuzzing, no_main)]

portcullis_fuzz::program!(checks);
