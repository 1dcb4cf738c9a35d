//! Objects in a bucket of an S3-compatible store, by path-style addresses.
//!
//! Credentials come from the environment, by the names that all clients know. What the store has in
//! memory or on disk nobody shows us: there is neither coldness nor layout, only times.

use crate::backend::{Backend, Put};
use crate::error::{Error, Kind, Result};
use larder::AlignedBuf;
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use std::collections::BTreeSet;
use std::io::Read;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use ureq::Agent;

/// How long a signature is good for.
const VALID: Duration = Duration::from_secs(900);

/// Objects in a bucket.
pub struct S3 {
    bucket: Bucket,
    credentials: Credentials,
    prefix: String,
    agent: Agent,
    /// What is to be removed at the end.
    keys: Mutex<BTreeSet<u64>>,
}

impl S3 {
    /// The bucket at `address`, `https://HOST/BUCKET` or `https://HOST/BUCKET/PREFIX`; credentials
    /// and region of the environment.
    pub fn connect(address: &str) -> Result<S3> {
        let variable = |name: &str| {
            std::env::var(name).map_err(|_| {
                Error::cannot(format!(
                    "S3 needs credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY \
                     ({name} is missing)"
                ))
            })
        };
        let key = variable("AWS_ACCESS_KEY_ID")?;
        let secret = variable("AWS_SECRET_ACCESS_KEY")?;
        let credentials = match std::env::var("AWS_SESSION_TOKEN") {
            Ok(token) => Credentials::new_with_token(key, secret, token),
            Err(_) => Credentials::new(key, secret),
        };
        let region = std::env::var("AWS_REGION").unwrap_or_else(|_| "us-east-1".to_owned());
        let s3 = S3::with(address, credentials, region)?;
        // Something must answer before a run begins: the absence of an object is an answer.
        match s3.get(0, &mut AlignedBuf::default()) {
            Err(error) if error.kind != Kind::Lost => Err(Error::cannot(error.text)),
            _ => Ok(s3),
        }
    }

    /// The same with these credentials.
    pub fn with(address: &str, credentials: Credentials, region: String) -> Result<S3> {
        let wrong = |why: &str| {
            Error::failed(format!(
                "this is no address of a bucket ({why}); write s3:https://HOST/BUCKET or \
                 s3:https://HOST/BUCKET/PREFIX"
            ))
        };
        let (scheme, rest) = address
            .split_once("://")
            .ok_or_else(|| wrong("it has no scheme"))?;
        let mut parts = rest.splitn(3, '/');
        let host = parts.next().unwrap_or_default();
        let name = parts.next().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| wrong("it has no bucket"))?.to_owned();
        let prefix = parts.next().unwrap_or_default().trim_matches('/');
        let endpoint = format!("{scheme}://{host}")
            .parse()
            .map_err(|_| wrong("its host is none"))?;
        let bucket = Bucket::new(endpoint, UrlStyle::Path, name, region)
            .map_err(|error| wrong(&error.to_string()))?;
        let own = format!("larder-lab-{}", std::process::id());
        Ok(S3 {
            bucket,
            credentials,
            prefix: match prefix {
                "" => own,
                _ => format!("{prefix}/{own}"),
            },
            agent: Agent::new_with_defaults(),
            keys: Mutex::default(),
        })
    }

    fn name(&self, key: u64) -> String {
        format!("{}/{key:08}", self.prefix)
    }

    fn note(&self, key: u64, is_there: bool) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        match is_there {
            true => keys.insert(key),
            false => keys.remove(&key),
        };
    }
}

impl Backend for S3 {
    /// An object appears whole, by the protocol; its length is always told.
    fn put(&self, key: u64, content: &[u8], _how: &Put) -> Result<()> {
        let name = self.name(key);
        let action = self.bucket.put_object(Some(&self.credentials), &name);
        // Before: what was answered by a failure may be there.
        self.note(key, true);
        let answer = self.agent.put(action.sign(VALID).as_str()).send(content);
        answer.map(drop).map_err(|error| failed("put", &error))
    }

    fn get(&self, key: u64, into: &mut AlignedBuf) -> Result<()> {
        let name = self.name(key);
        let action = self.bucket.get_object(Some(&self.credentials), &name);
        let mut answer = self
            .agent
            .get(action.sign(VALID).as_str())
            .call()
            .map_err(|error| failed("get", &error))?;
        into.resize(0, 0);
        let mut reader = answer.body_mut().as_reader();
        let mut part = [0; 64 << 10];
        loop {
            match reader.read(&mut part)? {
                0 => return Ok(()),
                len => into.extend_from_slice(&part[..len]),
            }
        }
    }

    fn delete(&self, key: u64) -> Result<()> {
        let name = self.name(key);
        let action = self.bucket.delete_object(Some(&self.credentials), &name);
        let answer = self.agent.delete(action.sign(VALID).as_str()).call();
        answer.map_err(|error| failed("delete", &error))?;
        self.note(key, false);
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        Ok(())
    }

    fn open(&mut self) -> Result<()> {
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let keys = self.keys.get_mut().unwrap_or_else(PoisonError::into_inner);
        let keys = std::mem::take(keys);
        keys.iter().try_for_each(|key| self.delete(*key))
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!("objects below '{}' remain: {error}", self.prefix);
        }
    }
}

fn failed(what: &str, error: &ureq::Error) -> Error {
    let kind = match error {
        ureq::Error::StatusCode(404) => Kind::Lost,
        ureq::Error::StatusCode(507) => Kind::NoSpace,
        _ => Kind::Failed,
    };
    Error::new(kind, format!("S3 {what}: {error}"))
}
