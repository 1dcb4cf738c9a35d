//! Keys that seals are signed with: Ed25519, in the PEM files that OpenSSL writes.
//!
//! A private key is PKCS#8 (RFC 8410), its public half a SubjectPublicKeyInfo; of both the bytes
//! before the 32 of the key are always the same.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use larder_object::{Error, ErrorKind, Result};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

const PRIVATE: &str = "PRIVATE KEY";
const PUBLIC: &str = "PUBLIC KEY";
const PRIVATE_HEAD: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];
const PUBLIC_HEAD: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// A key that signs.
pub struct SigningKey {
    pair: Ed25519KeyPair,
}

/// Its public half, which tells whether that key has signed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(pub [u8; 32]);

impl SigningKey {
    /// A new key, and its PEM text, which must be kept secret.
    pub fn generate() -> Result<(SigningKey, String)> {
        let mut seed = [0; 32];
        SystemRandom::new()
            .fill(&mut seed)
            .map_err(|_| Error::new(ErrorKind::Io, "the system has no random numbers"))?;
        let text = pem(PRIVATE, &[&PRIVATE_HEAD[..], &seed].concat());
        Ok((SigningKey::of(&seed)?, text))
    }

    /// Reads a PEM text; [`ErrorKind::InvalidInput`] for anything but a private Ed25519 key.
    pub fn parse(text: &str) -> Result<SigningKey> {
        SigningKey::of(&key_bytes(text, PRIVATE, &PRIVATE_HEAD)?)
    }

    /// Its public half.
    pub fn public_key(&self) -> PublicKey {
        let mut key = [0; 32];
        key.copy_from_slice(self.pair.public_key().as_ref());
        PublicKey(key)
    }

    pub(crate) fn sign(&self, message: &[u8]) -> [u8; 64] {
        let mut signature = [0; 64];
        signature.copy_from_slice(self.pair.sign(message).as_ref());
        signature
    }

    fn of(seed: &[u8; 32]) -> Result<SigningKey> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|why| {
            Error::new(
                ErrorKind::InvalidInput,
                format!("the key cannot be used: {why}"),
            )
        })?;
        Ok(SigningKey { pair })
    }
}

impl PublicKey {
    /// Reads a PEM text; [`ErrorKind::InvalidInput`] for anything but a public Ed25519 key.
    pub fn parse(text: &str) -> Result<PublicKey> {
        Ok(PublicKey(key_bytes(text, PUBLIC, &PUBLIC_HEAD)?))
    }

    /// Its PEM text.
    pub fn pem(&self) -> String {
        pem(PUBLIC, &[&PUBLIC_HEAD[..], &self.0].concat())
    }

    pub(crate) fn has_signed(&self, message: &[u8], signature: &[u8; 64]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0)
            .verify(message, signature)
            .is_ok()
    }
}

fn pem(what: &str, bytes: &[u8]) -> String {
    let body = BASE64_STANDARD.encode(bytes); // At most 64 characters: one line.
    format!("-----BEGIN {what}-----\n{body}\n-----END {what}-----\n")
}

/// The 32 bytes of the key in a PEM text.
fn key_bytes(text: &str, what: &str, head: &[u8]) -> Result<[u8; 32]> {
    let refuse = |why: &str| {
        let what = what.to_lowercase();
        Error::new(
            ErrorKind::InvalidInput,
            format!("this is no Ed25519 {what}: {why}; 'larder snapshot keygen' makes keys"),
        )
    };
    let begin = format!("-----BEGIN {what}-----");
    let end = format!("-----END {what}-----");
    let body = text
        .split_once(&begin)
        .and_then(|(_, rest)| rest.split_once(&end))
        .map(|(body, _)| body.split_whitespace().collect::<String>())
        .ok_or_else(|| refuse(&format!("'{begin}' is missing")))?;
    let bytes = BASE64_STANDARD
        .decode(body)
        .map_err(|why| refuse(&why.to_string()))?;
    bytes
        .strip_prefix(head)
        .and_then(|key| key.try_into().ok())
        .ok_or_else(|| refuse("it is of another kind"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_through_their_texts() {
        let (key, text) = SigningKey::generate().unwrap();
        let again = SigningKey::parse(&text).unwrap();
        assert_eq!(again.public_key(), key.public_key());
        let public = PublicKey::parse(&key.public_key().pem()).unwrap();
        let signature = again.sign(b"message");
        assert!(public.has_signed(b"message", &signature));
        assert!(!public.has_signed(b"massage", &signature));
        let (other, _) = SigningKey::generate().unwrap();
        assert!(!other.public_key().has_signed(b"message", &signature));
        // RFC 8410, section 10.3, by openssl(1): what others write is read.
        let known = "-----BEGIN PRIVATE \
            KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n\
             -----END PRIVATE KEY-----\n";
        let known_public = "-----BEGIN PUBLIC \
            KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n\
             -----END PUBLIC KEY-----\n";
        let known = SigningKey::parse(known).unwrap();
        assert_eq!(known.public_key().pem(), known_public);
        for bad in [
            "",
            &text.replace("PRIVATE", "PUBLIC"),
            &text.replace("MC4", "MC5"),
        ] {
            let refused = SigningKey::parse(bad).map(drop).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{bad}");
        }
        assert!(PublicKey::parse(&text).is_err());
    }
}
