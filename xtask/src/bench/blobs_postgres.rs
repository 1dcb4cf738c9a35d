//! PostgreSQL with content in `bytea` columns, stored EXTERNAL (not compressed): a private cluster in a
//! scratch directory, on a Unix socket of its own.
//!
//! Debian's package is `postgresql`. As root it is installed when it is not there, and the server runs as
//! the package's user, because it refuses to run as root.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use postgres::binary_copy::BinaryCopyInWriter;
use postgres::types::Type;
use postgres::{Client, NoTls};

use super::blob_store::BlobStore;
use super::content;
use crate::Outcome;
use crate::process;

const USER: &str = "postgres";

const SETTINGS: &str = "\
listen_addresses = ''
unix_socket_directories = '.'
max_connections = 10
shared_buffers = 512MB
max_wal_size = 4GB
checkpoint_timeout = 30min
wal_buffers = 64MB
synchronous_commit = on
fsync = on
";

/// The running cluster.
pub struct Postgres {
    directory: PathBuf,
    tools: PathBuf,
    /// `None` only while the server starts anew.
    client: Option<Client>,
}

impl Postgres {
    /// Makes a cluster below `scratch` and starts it.
    pub fn create(scratch: &Path) -> Result<Postgres, String> {
        let tools = tools()?;
        let directory = scratch.join("postgres");
        let explain = |error| format!("{}: {error}", directory.display());
        fs::create_dir(&directory).map_err(explain)?;
        if is_root() {
            let id = |flag| -> Result<u32, String> {
                let text = process::output("id", &[flag, USER])?;
                text.trim().parse().map_err(|_| format!("no user '{USER}'"))
            };
            chown(&directory, Some(id("-u")?), Some(id("-g")?)).map_err(explain)?;
        }
        let mut postgres = Postgres {
            directory,
            tools,
            client: None,
        };
        postgres.tool(
            "initdb",
            &[
                "--auth=trust",
                "--username=postgres",
                "--encoding=UTF8",
                "--locale=C",
            ],
        )?;
        let configuration = postgres.directory.join("postgresql.conf");
        let mut text = fs::read_to_string(&configuration)
            .map_err(|error| format!("postgresql.conf: {error}"))?;
        text.push_str(SETTINGS);
        fs::write(&configuration, text).map_err(|error| format!("postgresql.conf: {error}"))?;
        postgres.start()?;
        Ok(postgres)
    }

    fn start(&mut self) -> Outcome {
        let log = self.directory.join("server.log");
        self.tool("pg_ctl", &["start", "-w", "-l", &log.to_string_lossy()])?;
        let socket = self.directory.to_string_lossy();
        let client = Client::connect(
            &format!("host={socket} user=postgres dbname=postgres"),
            NoTls,
        );
        self.client = Some(client.map_err(explain)?);
        Ok(())
    }

    fn stop(&mut self) -> Outcome {
        if let Some(client) = self.client.take() {
            client.close().map_err(explain)?;
        }
        self.tool("pg_ctl", &["stop", "-w", "-m", "fast"])
    }

    /// Runs one of PostgreSQL's programs on this cluster, as its user.
    fn tool(&self, name: &str, arguments: &[&str]) -> Outcome {
        let program = self.tools.join(name).to_string_lossy().into_owned();
        let directory = self.directory.to_string_lossy().into_owned();
        let mut all = vec![program.as_str(), "-D", &directory];
        all.extend(arguments);
        if is_root() {
            let user = format!("--reuid={USER}");
            let group = format!("--regid={USER}");
            let mut drop = vec![user.as_str(), group.as_str(), "--clear-groups"];
            drop.extend(all);
            return run_in(&directory, "setpriv", &drop);
        }
        run_in(&directory, all[0], &all[1..])
    }

    fn client(&mut self) -> &mut Client {
        self.client
            .as_mut()
            .expect("connected outside of start and stop")
    }

    fn insert(
        &mut self,
        place: &str,
        ids: std::ops::Range<u64>,
        content: &mut [u8],
    ) -> Result<(), postgres::Error> {
        let client = self.client();
        if ids.end - ids.start == 1 {
            content::stamp(content, ids.start, 0);
            let insert = format!("INSERT INTO {place}(id, content) VALUES ($1, $2)");
            return client
                .execute(&insert, &[&(ids.start as i64), &&*content])
                .map(drop);
        }
        let mut transaction = client.transaction()?;
        let copy = format!("COPY {place}(id, content) FROM STDIN BINARY");
        let sink = transaction.copy_in(&copy)?;
        let mut writer = BinaryCopyInWriter::new(sink, &[Type::INT8, Type::BYTEA]);
        for id in ids {
            content::stamp(content, id, 0);
            writer.write(&[&(id as i64), &&*content])?;
        }
        writer.finish()?;
        transaction.commit()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.client.is_some()
            && let Err(line) = self.stop()
        {
            eprintln!("xtask: PostgreSQL is not stopped: {line}");
        }
    }
}

impl BlobStore for Postgres {
    fn name(&self) -> &'static str {
        "PostgreSQL"
    }

    fn make(&mut self, place: &str) -> Outcome {
        self.client()
            .batch_execute(&format!(
                "CREATE TABLE {place}(id bigint PRIMARY KEY, content bytea NOT NULL); \
                 ALTER TABLE {place} ALTER COLUMN content SET STORAGE EXTERNAL;"
            ))
            .map_err(explain)
    }

    fn put(&mut self, place: &str, ids: std::ops::Range<u64>, content: &mut [u8]) -> Outcome {
        self.insert(place, ids, content).map_err(explain)
    }

    fn get(&mut self, place: &str, id: u64, buffer: &mut [u8]) -> Result<usize, String> {
        let find = format!("SELECT content FROM {place} WHERE id = $1");
        let row = self
            .client()
            .query_one(&find, &[&(id as i64)])
            .map_err(explain)?;
        let content: &[u8] = row.get(0);
        buffer[..content.len()].copy_from_slice(content);
        Ok(content.len())
    }

    fn settle(&mut self) -> Outcome {
        self.client().batch_execute("CHECKPOINT").map_err(explain)
    }

    fn remove(&mut self, place: &str) -> Outcome {
        self.client()
            .batch_execute(&format!("DROP TABLE {place}"))
            .map_err(explain)?;
        self.settle()
    }

    fn forget(&mut self) -> Outcome {
        self.stop()?;
        self.start()
    }

    fn close(mut self: Box<Self>) -> Outcome {
        self.stop()
    }
}

/// The directory of PostgreSQL's programs; installs them if this process may.
fn tools() -> Result<PathBuf, String> {
    if let Some(found) = find_tools() {
        return Ok(found);
    }
    if !is_root() {
        return Err("bench blobs needs PostgreSQL: apt-get install postgresql".to_owned());
    }
    println!("bench: installing PostgreSQL (apt-get install postgresql)");
    process::run(
        "apt-get",
        &["install", "-y", "--no-install-recommends", "postgresql"],
    )?;
    find_tools().ok_or("apt-get installed no initdb".to_owned())
}

/// Debian keeps them by major version, outside of the search path.
fn find_tools() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let debian = versions
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|directory| directory.join("initdb").is_file())
        .max();
    let paths = std::env::var_os("PATH").unwrap_or_default();
    debian.or_else(|| std::env::split_paths(&paths).find(|path| path.join("initdb").is_file()))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs a program with `directory` as its own: the server's user may not enter this process's. Its output
/// goes nowhere, because a server that it starts would keep a pipe open.
fn run_in(directory: &str, program: &str, arguments: &[&str]) -> Outcome {
    use std::process::{Command, Stdio};
    let status = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(|error| format!("'{program}' does not run: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("'{program} {}' failed", arguments.join(" "))),
    }
}

fn explain(error: postgres::Error) -> String {
    use std::error::Error;
    match error.source() {
        Some(source) => format!("PostgreSQL: {error}: {source}"),
        None => format!("PostgreSQL: {error}"),
    }
}
