//! See `portcullis_fuzz::targets::limits`.

#![cfg_attr(fuzzing, no_main)]

portcullis_fuzz::program!(limits);
