//! PostgreSQL with content in `bytea` columns, stored EXTERNAL (not compressed), in a cluster of
//! its own.

use larder::AlignedBuf;
use std::path::Path;

use postgres::binary_copy::BinaryCopyInWriter;
use postgres::types::Type;
use postgres::{Client, NoTls};

use super::blob_store::BlobStore;
use super::cluster::Cluster;
use super::content;
use xtask::Outcome;

const SETTINGS: &str = "\
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
    cluster: Cluster,
    /// `None` only while the server starts anew.
    client: Option<Client>,
}

impl Postgres {
    /// Makes a cluster below `scratch` and starts it.
    pub fn create(scratch: &Path) -> Result<Postgres, String> {
        let directory = scratch.join("postgres");
        let mut postgres = Postgres {
            cluster: Cluster::create(&directory, SETTINGS)?,
            client: None,
        };
        postgres.start()?;
        Ok(postgres)
    }

    fn start(&mut self) -> Outcome {
        self.cluster.start()?;
        let client = Client::connect(&self.cluster.connection(), NoTls);
        self.client = Some(client.map_err(explain)?);
        Ok(())
    }

    fn stop(&mut self) -> Outcome {
        if let Some(client) = self.client.take() {
            client.close().map_err(explain)?;
        }
        self.cluster.stop()
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

    fn get(&mut self, place: &str, id: u64, buffer: &mut AlignedBuf) -> Result<usize, String> {
        let find = format!("SELECT content FROM {place} WHERE id = $1");
        let row = self
            .client()
            .query_one(&find, &[&(id as i64)])
            .map_err(explain)?;
        let content: &[u8] = row.get(0);
        buffer.resize(buffer.len().max(content.len()), 0);
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

fn explain(error: postgres::Error) -> String {
    use std::error::Error;
    match error.source() {
        Some(source) => format!("PostgreSQL: {error}: {source}"),
        None => format!("PostgreSQL: {error}"),
    }
}
