//! See `portcullis_fuzz::targets::descriptors`.

#![cfg_attr(fuzzing, no_main)]

portcullis_fuzz::program!(descriptors);
