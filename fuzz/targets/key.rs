//! Keys of seals, which come in files of others.
#![no_main]

use larder::{PublicKey, SigningKey};

libfuzzer_sys::fuzz_target!(|text: &str| {
    drop(SigningKey::parse(text));
    drop(PublicKey::parse(text));
});
