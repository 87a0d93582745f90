//! See `portcullis_fuzz::targets::requests`.

#![cfg_attr(fuzzing, no_main)]

portcullis_fuzz::program!(requests);
