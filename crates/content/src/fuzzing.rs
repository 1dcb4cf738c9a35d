//! The decoders of this crate that `cargo xtask fuzz` calls. Only built by it.

pub use larder_object::fuzzing as object;

use crate::acl::Acl;

/// An access control list, as a user of a mount sets it (`ACL-1`).
pub fn read_acl(value: &[u8]) {
    if let Ok(Some(acl)) = Acl::decode(value) {
        // Ids of entries that name nobody are not kept.
        let again = Acl::decode(&acl.encode()).ok().flatten();
        assert_eq!(again.as_ref(), Some(&acl), "ACL-1");
        assert!(acl.mode_bits() <= 0o777, "ACL-1");
    }
}
