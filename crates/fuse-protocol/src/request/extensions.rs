//! What makers of nodes get beside their arguments: groups and security contexts.

use super::body::{Body, Malformed};
use crate::wire;

/// Records of a type and a length, each aligned to 8 bytes.
pub(super) fn decode_extensions(mut bytes: &[u8]) -> Result<Extensions, Malformed> {
    let mut extensions = Extensions::default();
    while !bytes.is_empty() {
        let (header, _) = wire::take::<wire::ExtHeader>(bytes).ok_or(Malformed)?;
        let len_bytes = header.size as usize;
        if len_bytes < size_of::<wire::ExtHeader>() {
            return Err(Malformed);
        }
        let record = bytes.get(..len_bytes).ok_or(Malformed)?;
        let content = &record[size_of::<wire::ExtHeader>()..];
        match header.kind {
            wire::EXT_GROUPS => extensions.groups = decode_groups(content)?,
            count if count <= wire::EXT_SECURITY_MAX => {
                extensions.security_contexts = decode_contexts(content, count)?;
            }
            // A later kernel may say more than was asked for.
            _ => {}
        }
        bytes = bytes.get(len_bytes.next_multiple_of(8)..).unwrap_or(&[]);
    }
    Ok(extensions)
}

fn decode_groups(content: &[u8]) -> Result<Vec<u32>, Malformed> {
    let words = |bytes: &[u8]| -> Vec<u32> {
        (bytes.chunks_exact(4))
            .map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
            .collect()
    };
    let (count, rest) = content.split_at_checked(4).ok_or(Malformed)?;
    let len_bytes = (words(count)[0] as usize).checked_mul(4).ok_or(Malformed)?;
    Ok(words(rest.get(..len_bytes).ok_or(Malformed)?))
}

fn decode_contexts(mut content: &[u8], count: u32) -> Result<Vec<SecurityContext>, Malformed> {
    let mut contexts = Vec::new();
    for _ in 0..count {
        let (header, rest) = wire::take::<wire::Secctx>(content).ok_or(Malformed)?;
        let mut body = Body {
            fixed: rest,
            apart: None,
        };
        let name = body.name()?.to_vec();
        let value = body.data(header.size)?.to_vec();
        let used = content.len() - body.fixed.len();
        content = content.get(used.next_multiple_of(8)..).unwrap_or(&[]);
        contexts.push(SecurityContext { name, value });
    }
    Ok(contexts)
}

/// What was negotiated for makers of nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extensions {
    /// With `CREATE_SUPP_GROUP`: supplementary groups of the caller, that of the parent if it is
    /// one.
    pub groups: Vec<u32>,
    /// With `SECURITY_CTX`: extended attributes that the new node is to have.
    pub security_contexts: Vec<SecurityContext>,
}

/// An extended attribute of a new node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecurityContext {
    /// Its name.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}
