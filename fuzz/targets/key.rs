//! Keys of seals, in PEM.
#![no_main]

use larder::{PublicKey, SigningKey};

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(key) = PublicKey::parse(text) {
        assert!(PublicKey::parse(&key.pem()).is_ok());
    }
    if let Ok(key) = SigningKey::parse(text) {
        let _ = key.public_key();
    }
});
