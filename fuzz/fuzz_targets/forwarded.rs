//! See `portcullis_fuzz::targets::forwarded`.

#![cfg_attr(fuzzing, no_main)]

portcullis_fuzz::program!(forwarded);
