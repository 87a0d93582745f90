//! See `portcullis_fuzz::targets::ats`.

#![cfg_attr(fuzzing, no_main)]

portcullis_fuzz::program!(ats);
