//! See `portcullis_fuzz::targets::shared_files`.

#![cfg_attr(fuzzing, no_main)]

portcullis_fuzz::program!(shared_files);
