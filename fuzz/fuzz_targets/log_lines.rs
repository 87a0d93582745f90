//! See `portcullis_fuzz::targets::log_lines`.

#![cfg_attr(fuzzing, no_main)]

portcullis_fuzz::program!(log_lines);
