//! Content of measured objects: incompressible, cheap to make, verified whenever it is read.
//!
//! A buffer is filled with noise once. Every 1 KB of an object begins with a marker: magic, the
//! object's id, its version, the number of the KB. A block that is missing, old, of another object
//! or in another place has the wrong marker.

use larder_testkit::Rng;

/// Distance between markers, bytes.
const STEP_BYTES: usize = 1024;
/// Length of a marker, bytes.
const MARKER_BYTES: usize = 24;
const MAGIC: u32 = 0x4c61_7264;

/// A buffer of noise, `len` bytes.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = vec![0; len];
    for part in bytes.chunks_mut(8) {
        part.copy_from_slice(&rng.bits().to_le_bytes()[..part.len()]);
    }
    bytes
}

/// Makes `content` version `version` of object `id`. Objects are at least one marker long.
pub fn stamp(content: &mut [u8], id: u64, version: u32) {
    for (index, step) in content.chunks_mut(STEP_BYTES).enumerate() {
        if let Some(place) = step.get_mut(..MARKER_BYTES) {
            place.copy_from_slice(&marker(id, version, index));
        }
    }
}

/// Whether `content` is version `version` of object `id`, `len` bytes long.
pub fn verify(content: &[u8], id: u64, version: u32, len: usize) -> Result<(), String> {
    if content.len() != len {
        return Err(format!(
            "object {id} has {} bytes instead of {len}",
            content.len()
        ));
    }
    for (index, step) in content.chunks(STEP_BYTES).enumerate() {
        match step.get(..MARKER_BYTES) {
            Some(found) if found != marker(id, version, index) => {
                return Err(format!(
                    "object {id} version {version} reads differently at {index} KB"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

fn marker(id: u64, version: u32, index: usize) -> [u8; MARKER_BYTES] {
    let mut bytes = [0; MARKER_BYTES];
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..8].copy_from_slice(&version.to_le_bytes());
    bytes[8..16].copy_from_slice(&id.to_le_bytes());
    bytes[16..].copy_from_slice(&(index as u64).to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_the_object_is_found() {
        let mut content = noise(1, 5000);
        stamp(&mut content, 7, 3);
        verify(&content, 7, 3, 5000).unwrap();
        assert!(verify(&content, 8, 3, 5000).is_err());
        assert!(verify(&content, 7, 2, 5000).is_err());
        assert!(verify(&content[..4999], 7, 3, 5000).is_err());
        content.copy_within(1024..2048, 2048);
        assert!(verify(&content, 7, 3, 5000).is_err());
    }
}
