//! See `portcullis_fuzz::targets::ocelot`.

#![cfg_attr(fuzzing, no_main)]

portcullis_fuzz::program!(ocelot);
