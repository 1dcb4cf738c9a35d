//! `larder snapshot seal`, `verify` and `keygen`: evidence of what snapshots showed.

use crate::databases::with_database;
use crate::error::{At, Failure, Result};
use crate::output::{Output, hex, put_name};
use crate::units::{show_size, show_time};
use clap::{Args, ValueHint};
use larder::{
    Database, PublicKey, SealRow, SealState, SigningKey, VerifiedSeal, VerifyFinding, VerifyOptions,
};
use serde_json::{Map, Value, json};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Which seals, and against what.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Database
    #[arg(value_hint = ValueHint::DirPath)]
    db: PathBuf,
    /// The name of a snapshot: its newest seal
    #[arg(required_unless_present = "all")]
    name: Option<String>,
    /// All seals
    #[arg(long, conflicts_with = "name")]
    all: bool,
    /// Each must be signed by the owner of this key
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    public_key: Option<PathBuf>,
    /// The chain must have this link, which a seal or a verification printed before
    #[arg(long, value_name = "LINK", value_parser = parse_link)]
    expect: Option<[u8; 32]>,
}

fn parse_link(text: &str) -> std::result::Result<[u8; 32], String> {
    let mut link = [0; 32];
    let is_good = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    for (byte, at) in link.iter_mut().zip((0..64).step_by(2)) {
        let digits = text.get(at..at + 2).filter(|_| is_good);
        *byte = digits
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .ok_or("a link has 64 hexadecimal digits; 'larder snapshot seal' prints it")?;
    }
    Ok(link)
}

/// The private key in a file.
pub(crate) fn read_key(file: &Path) -> Result<SigningKey> {
    SigningKey::parse(&read_text(file)?).at(|| file.display().to_string())
}

fn read_text(file: &Path) -> Result<String> {
    fs::read_to_string(file).map_err(|source| Failure::Io {
        what: format!("cannot read the key {}", file.display()),
        source,
    })
}

/// Seals a snapshot.
pub(crate) fn seal_one(
    database: &Database,
    name: &str,
    key: Option<&SigningKey>,
    out: &mut Output,
) -> Result<()> {
    let report = database
        .snapshots()
        .seal(name, key)
        .at(|| format!("cannot seal snapshot '{name}'"))?;
    if out.is_json() {
        let mut document = seal_json(&report.seal);
        document.insert("file_count".into(), report.file_count.into());
        document.insert("content_bytes".into(), report.content_bytes.into());
        document.insert("left_out".into(), report.left_out.into());
        return out.document(&Value::Object(document));
    }
    out.line(&format!(
        "sealed snapshot {}, commit {}: {} files, {} of content{}",
        report.seal.snapshot,
        report.seal.seq,
        report.file_count,
        show_size(report.content_bytes),
        match key {
            Some(_) => ", signed",
            None => "",
        }
    ))?;
    for store in &report.left_out {
        out.line(&format!("left out: {}", left_out(store)))?;
    }
    out.line(&link_line(report.seal.number, &report.seal.link))
}

fn left_out(store: &str) -> String {
    format!("store '{store}', whose history begins after that moment")
}

fn link_line(number: u64, link: &[u8; 32]) -> String {
    format!("link {number} {}", hex(link))
}

/// `larder snapshot verify`.
pub(crate) fn verify(args: &VerifyArgs, out: &mut Output) -> Result<()> {
    let public_key = match &args.public_key {
        Some(file) => Some(PublicKey::parse(&read_text(file)?).at(|| file.display().to_string())?),
        None => None,
    };
    let options = VerifyOptions {
        snapshot: args.name.clone(),
        public_key,
        expected: args.expect,
    };
    let report = with_database(&args.db, "snapshot verify", |database| {
        database
            .snapshots()
            .verify(&options)
            .at(|| "cannot verify".to_owned())
    })?;
    if out.is_json() {
        let seals = report.seals.iter().map(verified_json);
        out.document(&json!({
            "is_clean": report.is_clean(),
            "chain": report.chain.iter().map(finding_json).collect::<Vec<_>>(),
            "seals": seals.collect::<Vec<_>>(),
            "newest_link": report.newest.map(|(_, link)| hex(&link)),
        }))?;
    } else {
        for one in &report.chain {
            out.name_line(&finding_line(None, one))?;
        }
        for one in &report.seals {
            print_verified(one, out)?;
        }
        if let Some((number, link)) = &report.newest {
            out.line(&link_line(*number, link))?;
        }
    }
    match report.is_clean() {
        true => Ok(()),
        false => Err(Failure::Told(1)),
    }
}

fn print_verified(one: &VerifiedSeal, out: &mut Output) -> Result<()> {
    for finding in &one.findings {
        out.name_line(&finding_line(Some(&one.seal), finding))?;
    }
    let seal = &one.seal;
    let what = match (&one.state, one.findings.len()) {
        (SealState::Destroyed, 0) => {
            "its snapshot was destroyed, the link is in its place".to_owned()
        }
        (_, 0) => format!(
            "as it was sealed: {} files, {} of content",
            one.file_count,
            show_size(one.content_bytes)
        ),
        (_, 1) => "1 finding".to_owned(),
        (_, count) => format!("{count} findings"),
    };
    let pruned = match one.pruned {
        Some((first, last)) => {
            format!("; the history of commits {first} to {last} is pruned, and was not read")
        }
        None => String::new(),
    };
    let without: String = (one.left_out.iter())
        .map(|store| format!("; it says nothing of {}", left_out(store)))
        .collect();
    out.line(&format!(
        "seal {} of snapshot {}, commit {}, {}: {what}{pruned}{without}",
        seal.number,
        seal.snapshot,
        seal.seq,
        show_time(seal.at_ns)
    ))
}

fn finding_line(seal: Option<&SealRow>, finding: &VerifyFinding) -> Vec<u8> {
    let of = match seal {
        Some(seal) => format!("seal {} ({}): ", seal.number, seal.snapshot),
        None => String::new(),
    };
    match &finding.path {
        Some(path) => [of.as_bytes(), path, b": ", finding.what.as_bytes()].concat(),
        None => [of.as_bytes(), finding.what.as_bytes()].concat(),
    }
}

fn finding_json(finding: &VerifyFinding) -> Value {
    let mut object = Map::new();
    if let Some(path) = &finding.path {
        put_name(&mut object, "path", path);
    }
    object.insert("what".into(), finding.what.as_str().into());
    Value::Object(object)
}

fn verified_json(one: &VerifiedSeal) -> Value {
    let mut object = seal_json(&one.seal);
    let findings: Vec<Value> = one.findings.iter().map(finding_json).collect();
    object.insert("findings".into(), findings.into());
    object.insert("is_destroyed".into(), one.seal.is_destroyed.into());
    object.insert("file_count".into(), one.file_count.into());
    object.insert("content_bytes".into(), one.content_bytes.into());
    let pruned = one.pruned.map(|(first, last)| json!([first, last]));
    object.insert("pruned_commits".into(), pruned.unwrap_or_default());
    object.insert("left_out".into(), one.left_out.clone().into());
    Value::Object(object)
}

fn seal_json(seal: &SealRow) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("number".into(), seal.number.into());
    object.insert("snapshot".into(), seal.snapshot.as_str().into());
    object.insert("seq".into(), seal.seq.0.into());
    object.insert("at_ns".into(), seal.at_ns.into());
    object.insert("sealed_ns".into(), seal.sealed_ns.into());
    object.insert("link".into(), hex(&seal.link).into());
    let key = seal.signature.map(|(key, _)| hex(&key));
    object.insert("public_key".into(), key.into());
    let signature = seal.signature.map(|(_, signature)| hex(&signature));
    object.insert("signature".into(), signature.into());
    object
}

/// `larder snapshot keygen`.
pub(crate) fn keygen(file: &Path, out: &mut Output) -> Result<()> {
    let (key, text) = SigningKey::generate()?;
    let mut public = file.as_os_str().to_owned();
    public.push(".pub");
    let public = PathBuf::from(public);
    write_new(file, &text, 0o600)?;
    write_new(&public, &key.public_key().pem(), 0o644)?;
    match out.is_json() {
        true => out.document(&json!({"public_key": hex(&key.public_key().0)})),
        false => out.line(&format!(
            "made {}, which must be kept secret and away from the database, and {}",
            file.display(),
            public.display()
        )),
    }
}

fn write_new(file: &Path, text: &str, mode: u32) -> Result<()> {
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(file)
        .and_then(|mut opened| {
            opened.write_all(text.as_bytes())?;
            opened.sync_all()
        });
    written.map_err(|source| Failure::Io {
        what: format!("cannot write the key {}", file.display()),
        source,
    })
}
