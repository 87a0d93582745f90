//! See `portcullis_fuzz::targets::limit_fields`.

#![cfg_attr(fuzzing, no_main)]

portcullis_fuzz::program!(limit_fields);
