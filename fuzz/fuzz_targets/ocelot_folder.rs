//! See `portcullis_fuzz::targets::ocelot_folder`.

#![cfg_attr(fuzzing, no_main)]

portcullis_fuzz::program!(ocelot_folder);
