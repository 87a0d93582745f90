//! See `portcullis_fuzz::targets::log_formats`.

#![cfg_attr(fuzzing, no_main)]

portcullis_fuzz::program!(log_formats);
