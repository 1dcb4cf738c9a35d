//! Addresses `DB@MOMENT:/path` (`CLI-3`, `CLI-30`), and what is printed of names (`CLI-41`).
#![no_main]
#![allow(dead_code)]

#[path = "../../crates/cli/src/address.rs"]
mod address;
#[path = "../../crates/cli/src/error.rs"]
mod error;
#[path = "../../crates/cli/src/visible.rs"]
mod visible;

use visible::visible_bytes;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let argument = OsStr::from_bytes(bytes);
    if let Ok(address::Address::In(found)) = address::Address::parse(argument) {
        assert_eq!(found.path.first(), Some(&b'/'), "CLI-3");
        let _ = address::split_moment(&found.database);
    }
    let shown = visible_bytes(bytes);
    assert!(!shown.contains(char::is_control), "CLI-41: {shown:?}");
});
