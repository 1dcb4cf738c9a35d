//! PostgreSQL: objects in a column of type `bytea` that is neither compressed nor inline, or as
//! large objects; on a private cluster of our own, or on a server that runs.
//!
//! A private cluster has its write-ahead log beside the volume (`BACKEND-2`), serves a socket only,
//! and vacuums when the laboratory says so, not when it thinks so (`WORKLOAD-2`). As root it runs
//! as another user: it refuses root.

use crate::backend::place::Place;
use crate::backend::{Backend, Put};
use crate::error::{Error, Kind, Result, Said};
use crate::measure::markers::Pages;
use crate::process::{self, Server};
use larder::AlignedBuf;
use postgres::error::SqlState;
use postgres::{Client, Config, NoTls};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Where Debian keeps the programs of the server, by version.
const DEBIAN: &str = "/usr/lib/postgresql";
/// Users that may run it when we are root, in this order.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// A cluster of our own.
pub struct Cluster {
    programs: PathBuf,
    data: PathBuf,
    socket: PathBuf,
    /// Who runs it, if not we.
    owner: Option<(u32, u32)>,
    /// `None` while it is stopped.
    server: Option<Server>,
}

impl Cluster {
    /// Whether there is a server to start; if not, what helps.
    pub fn check() -> Result<()> {
        find_programs().map(drop)
    }

    /// A new cluster, running. Its write-ahead log lies beside the volume if `is_log_apart`.
    pub fn create(place: &Place, is_log_apart: bool) -> Result<Cluster> {
        let programs = find_programs()?;
        let owner = match rustix::process::geteuid().is_root() {
            true => Some(find_user()?),
            false => None,
        };
        let cluster = Cluster {
            programs,
            data: place.data.join("cluster"),
            socket: place.log.join("postgres"),
            owner,
            server: None,
        };
        for directory in [&cluster.data, &cluster.socket] {
            fs::create_dir(directory).said(|| directory.display().to_string())?;
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
            if let Some((user, group)) = owner {
                chown(directory, Some(user), Some(group))
                    .said(|| directory.display().to_string())?;
            }
        }
        let mut initdb = cluster.command("initdb");
        initdb
            .args([
                "--auth=trust",
                "--username=lab",
                "--encoding=UTF8",
                "--locale=C",
            ])
            .arg("--pgdata")
            .arg(&cluster.data);
        if is_log_apart {
            initdb.arg("--waldir").arg(cluster.socket.join("wal"));
        }
        process::run(initdb).map_err(|error| Error::cannot(error.text))?;
        let settings = format!(
            "\nlisten_addresses = ''\nunix_socket_directories = '{}'\nautovacuum = \
             off\nmax_wal_size = '{}MB'\n",
            cluster.socket.display(),
            if is_log_apart { 512 } else { 128 }
        );
        let file = cluster.data.join("postgresql.conf");
        let text = fs::read_to_string(&file).said(|| file.display().to_string())? + &settings;
        fs::write(&file, text).said(|| file.display().to_string())?;
        let mut cluster = cluster;
        cluster.start()?;
        Ok(cluster)
    }

    /// Starts it.
    pub fn start(&mut self) -> Result<()> {
        let mut command = self.command("postgres");
        command.arg("-D").arg(&self.data);
        // SIGINT: the fast shutdown, which writes everything.
        let mut server = Server::start(command, Signal::INT)?;
        let config = self.config();
        server.wait_until(|| Ok(config.connect(NoTls).is_ok()))?;
        self.server = Some(server);
        Ok(())
    }

    /// Stops it; everything is on the volume.
    pub fn stop(&mut self) -> Result<()> {
        match self.server.take() {
            Some(server) => server.end(),
            None => Ok(()),
        }
    }

    /// How to reach it.
    pub fn config(&self) -> Config {
        let mut config = Config::new();
        config
            .host_path(&self.socket)
            .user("lab")
            .dbname("postgres");
        config
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.current_dir("/").env("LC_ALL", "C");
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        command
    }
}

/// The directory of the newest server's programs.
fn find_programs() -> Result<PathBuf> {
    let versions = fs::read_dir(DEBIAN).into_iter().flatten();
    let debian = versions
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|directory| directory.join("initdb").is_file())
        .max();
    let on_path = || Some(process::find("initdb")?.parent()?.to_owned());
    debian.or_else(on_path).ok_or_else(|| {
        Error::cannot(
            "there is no PostgreSQL server here; install postgresql (apt-get install postgresql), \
             or name one that \
             runs: postgres:postgresql://USER@HOST/DATABASE",
        )
    })
}

fn find_user() -> Result<(u32, u32)> {
    let text = fs::read_to_string("/etc/passwd").said(|| "/etc/passwd".to_owned())?;
    let ids = |name: &str| {
        let line = text
            .lines()
            .find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    USERS.into_iter().find_map(ids).ok_or_else(|| {
        Error::cannot(
            "PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody'",
        )
    })
}

/// The version of the server that a private cluster has.
pub fn version() -> Option<String> {
    let program = find_programs().ok()?.join("postgres");
    let text = process::output(&program.to_string_lossy(), &[OsStr::new("--version")]).ok()?;
    Some(text.trim().to_owned())
}

/// Objects in PostgreSQL.
pub struct Postgres {
    /// Ours; `None`: somebody else's.
    cluster: Option<Cluster>,
    config: Config,
    table: String,
    is_large_objects: bool,
    upkeep_bytes: u64,
    idle: Mutex<Vec<Client>>,
    /// On somebody else's server there is a table of ours.
    has_table: bool,
}

impl Postgres {
    /// On a new cluster.
    pub fn create(place: &Place, is_large_objects: bool, volume_bytes: u64) -> Result<Postgres> {
        let cluster = Cluster::create(place, true)?;
        let config = cluster.config();
        Postgres::new(Some(cluster), config, is_large_objects, volume_bytes)
    }

    /// On a server that runs, in a table of our own.
    pub fn connect(url: &str, is_large_objects: bool, volume_bytes: u64) -> Result<Postgres> {
        let config: Config = url
            .parse()
            .map_err(|error| Error::failed(format!("this is no address of a server: {error}")))?;
        if let Err(error) = config.connect(NoTls) {
            return Err(Error::cannot(format!(
                "no PostgreSQL answers ({}); start it, or name the backend 'postgres', which runs \
                 a private server on a \
                 volume, or 'postgres:DIR', which runs one in a directory",
                tell(&error)
            )));
        }
        Postgres::new(None, config, is_large_objects, volume_bytes)
    }

    fn new(
        cluster: Option<Cluster>,
        config: Config,
        is_large_objects: bool,
        volume_bytes: u64,
    ) -> Result<Postgres> {
        let mut backend = Postgres {
            cluster,
            config,
            table: format!("larder_lab_{}", std::process::id()),
            is_large_objects,
            // Dead rows take at most that.
            upkeep_bytes: volume_bytes / 50,
            idle: Mutex::default(),
            has_table: false,
        };
        let table = &backend.table;
        let kind = if is_large_objects { "oid" } else { "bytea" };
        let mut create = format!(
            "CREATE TABLE {table} (key bigint PRIMARY KEY, bytes bigint NOT NULL, content {kind} \
             NOT NULL);"
        );
        if !is_large_objects {
            create += &format!("ALTER TABLE {table} ALTER content SET STORAGE EXTERNAL;");
        }
        backend.with(|client| client.batch_execute(&create))?;
        backend.has_table = backend.cluster.is_none();
        Ok(backend)
    }

    fn with<T>(
        &self,
        work: impl FnOnce(&mut Client) -> std::result::Result<T, postgres::Error>,
    ) -> Result<T> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let mut client = match idle {
            Some(client) => client,
            None => self.config.connect(NoTls).map_err(failed)?,
        };
        let done = work(&mut client).map_err(failed);
        if !client.is_closed() {
            self.idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(client);
        }
        done
    }

    /// A large object is written in parts; its row names it in the same transaction.
    fn put_large(
        &self,
        client: &mut Client,
        key: i64,
        content: &[u8],
        request_bytes: usize,
    ) -> std::result::Result<(), postgres::Error> {
        const WRITE: i32 = 0x20000;
        let table = &self.table;
        let mut transaction = client.transaction()?;
        let old = transaction.query_opt(
            &format!("SELECT content FROM {table} WHERE key = $1"),
            &[&key],
        )?;
        let oid: u32 = transaction.query_one("SELECT lo_create(0)", &[])?.get(0);
        let descriptor: i32 = transaction
            .query_one("SELECT lo_open($1, $2)", &[&oid, &WRITE])?
            .get(0);
        let write = transaction.prepare("SELECT lowrite($1, $2)")?;
        for part in content.chunks(request_bytes.max(1)) {
            transaction.query_one(&write, &[&descriptor, &part])?;
        }
        let bytes = content.len() as i64;
        transaction.execute(&self.upsert(), &[&key, &bytes, &oid])?;
        if let Some(row) = old {
            transaction.execute("SELECT lo_unlink($1)", &[&row.get::<_, u32>(0)])?;
        }
        transaction.commit()
    }

    fn upsert(&self) -> String {
        format!(
            "INSERT INTO {} (key, bytes, content) VALUES ($1, $2, $3) \
             ON CONFLICT (key) DO UPDATE SET bytes = excluded.bytes, content = excluded.content",
            self.table
        )
    }
}

impl Backend for Postgres {
    /// A `bytea` goes whole in one statement; the interface takes no parts of it.
    fn put(&self, key: u64, content: &[u8], how: &Put) -> Result<()> {
        let key = key as i64;
        self.with(|client| match self.is_large_objects {
            true => self.put_large(client, key, content, how.request_bytes),
            false => {
                let bytes = content.len() as i64;
                client.execute(&self.upsert(), &[&key, &bytes, &content])?;
                Ok(())
            }
        })
    }

    fn get(&self, key: u64, into: &mut AlignedBuf) -> Result<()> {
        let content = if self.is_large_objects {
            "lo_get(content)"
        } else {
            "content"
        };
        let query = format!("SELECT {content} FROM {} WHERE key = $1", self.table);
        let row = self.with(|client| client.query_opt(&query, &[&(key as i64)]))?;
        let row = row.ok_or_else(|| Error::lost(format!("there is no row {key}")))?;
        into.resize(0, 0);
        into.extend_from_slice(row.get(0));
        Ok(())
    }

    fn delete(&self, key: u64) -> Result<()> {
        let content = if self.is_large_objects {
            "lo_unlink(content)"
        } else {
            "1"
        };
        let query = format!(
            "DELETE FROM {} WHERE key = $1 RETURNING {content}",
            self.table
        );
        self.with(|client| client.execute(&query, &[&(key as i64)]))
            .map(drop)
    }

    /// What was replaced is a dead row until a vacuum; large objects are rows of a system table.
    fn upkeep(&self) -> Result<()> {
        let what = if self.is_large_objects {
            "pg_largeobject"
        } else {
            &self.table
        };
        let vacuum = format!("VACUUM {what}");
        self.with(|client| client.batch_execute(&vacuum))
    }

    fn upkeep_bytes(&self) -> Option<u64> {
        Some(self.upkeep_bytes)
    }

    fn close(&mut self) -> Result<()> {
        self.idle
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        match &mut self.cluster {
            Some(cluster) => cluster.stop(),
            None => Ok(()),
        }
    }

    fn open(&mut self) -> Result<()> {
        match &mut self.cluster {
            Some(cluster) => cluster.start(),
            None => Ok(()),
        }
    }

    fn end(&mut self) -> Result<()> {
        if std::mem::take(&mut self.has_table) {
            let table = &self.table;
            // In parts: each large object is a lock until its transaction ends.
            let unlink = format!(
                "WITH part AS (DELETE FROM {table} WHERE key IN (SELECT key FROM {table} LIMIT \
                 1000) RETURNING content) \
                 SELECT count(lo_unlink(content)) FROM part"
            );
            let drop_table = format!("DROP TABLE {table}");
            self.with(|client| {
                while self.is_large_objects && client.query_one(&unlink, &[])?.get::<_, i64>(0) > 0
                {
                }
                client.batch_execute(&drop_table)
            })?;
        }
        self.close()
    }

    /// The parts of a value lie in pages of 8 KiB, in each from the end to the beginning.
    fn pages(&self) -> Pages {
        Pages {
            back_bytes: 8192,
            ahead_bytes: 16_384,
        }
    }
}

/// However a case ends: what is ours on a server goes.
impl Drop for Postgres {
    fn drop(&mut self) {
        if self.has_table
            && let Err(error) = self.end()
        {
            tracing::warn!("the table {} remains: {error}", self.table);
        }
    }
}

/// What a server is known by: its address without a password.
pub fn identity(address: &str) -> String {
    let known = |config: Config| {
        format!(
            "{:?} {:?} {:?} {:?}",
            config.get_hosts(),
            config.get_ports(),
            config.get_dbname(),
            config.get_user()
        )
    };
    address.parse().map(known).unwrap_or_default()
}

/// What an error of the server is here.
pub fn failed(error: postgres::Error) -> Error {
    let kind = match error.code() {
        Some(&SqlState::DISK_FULL) => Kind::NoSpace,
        Some(&SqlState::DATA_CORRUPTED) => Kind::Lost,
        _ => Kind::Failed,
    };
    Error::new(kind, format!("PostgreSQL: {}", tell(&error)))
}

/// The server's words, where it has some.
fn tell(error: &postgres::Error) -> String {
    match error.as_db_error() {
        Some(told) => told.message().to_owned(),
        None => error.to_string(),
    }
}

/// Whether what follows `postgres:` is a directory for a private cluster, not a server.
pub fn is_directory(text: &str) -> bool {
    !text.contains("://") && !text.contains('=') && Path::new(text).is_absolute()
}
