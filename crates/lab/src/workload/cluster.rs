//! PostgreSQL's transactions over filesystem and block size (\[CLUSTER\]): inserts, selects and
//! deletes of single rows, as many to a transaction as it takes, with everything of the server on
//! the volume.

use crate::backend::Ground;
use crate::backend::postgres::{Cluster, failed};
use crate::error::{Error, Result};
use crate::sizes::Random;
use crate::workload::{Figure, Stop};
use postgres::{Client, NoTls};
use std::time::Instant;

/// What is done.
#[derive(Debug, Clone, PartialEq)]
pub struct Transactions {
    /// Transactions of each action; times are taken after a tenth, a half and all of them.
    pub transactions: u32,
    /// Statements in each.
    pub statements: u32,
}

const ACTIONS: [(&str, &str); 3] = [
    (
        "insert",
        "INSERT INTO test (\"ID\", \"testNumber\", \"testString\") VALUES ($1, $2, $3)",
    ),
    (
        "select",
        "SELECT \"ID\", \"testNumber\", \"testString\" FROM test WHERE \"ID\" = $1",
    ),
    ("delete", "DELETE FROM test WHERE \"ID\" = $1"),
];

impl Transactions {
    /// Does it on `ground`.
    pub fn run(
        &self,
        mut ground: Ground,
        mut random: Random,
        stop: Stop<'_>,
        on_progress: &mut dyn FnMut(f64),
        on_figure: &mut dyn FnMut(Figure<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut cluster = Cluster::create(&ground.place, false)?;
        connect(&cluster)?
            .batch_execute(
                "CREATE TABLE test (\"ID\" INT PRIMARY KEY, \"testNumber\" INT, \"testString\" \
                 varchar(100));",
            )
            .map_err(failed)?;
        let rows = self.transactions * self.statements;
        let mut keys: Vec<i32> = (0..rows as i32).collect();
        for (index, (action, statement)) in ACTIONS.iter().enumerate() {
            random.shuffle(&mut keys);
            // Cold, as in the paper.
            cluster.stop()?;
            ground.at_rest(|_| Ok(()))?;
            cluster.start()?;
            let mut client = connect(&cluster)?;
            let before = ground.traffic()?;
            let started = Instant::now();
            for (done, keys) in keys.chunks(self.statements as usize).enumerate() {
                stop.check()?;
                self.transact(&mut client, action, statement, keys)?;
                let done = done as u32 + 1;
                if self.points().contains(&done) {
                    let extra = [
                        ("action", (*action).to_owned()),
                        ("transactions", done.to_string()),
                    ];
                    on_figure(Figure {
                        age: 0.0,
                        extra: &extra,
                        measure: "seconds",
                        value: started.elapsed().as_secs_f64(),
                    })?;
                }
                let all = ACTIONS.len() as f64;
                on_progress((index as f64 + f64::from(done) / f64::from(self.transactions)) / all);
            }
            client.batch_execute("CHECKPOINT").map_err(failed)?;
            let written = ground.traffic()?.since(&before).data.write_bytes;
            on_figure(Figure {
                age: 0.0,
                extra: &[("action", (*action).to_owned())],
                measure: "device_kb_per_transaction",
                value: written as f64 / 1000.0 / f64::from(self.transactions),
            })?;
        }
        cluster.stop()
    }

    /// After how many transactions times are taken.
    fn points(&self) -> [u32; 3] {
        [
            (self.transactions / 10).max(1),
            (self.transactions / 2).max(1),
            self.transactions,
        ]
    }

    /// One transaction; each statement must meet exactly one row (`WORKLOAD-1`).
    fn transact(
        &self,
        client: &mut Client,
        action: &str,
        statement: &str,
        keys: &[i32],
    ) -> Result<()> {
        let mut transaction = client.transaction().map_err(failed)?;
        let prepared = transaction.prepare(statement).map_err(failed)?;
        for key in keys {
            let (number, text) = (key.wrapping_mul(31), content(*key));
            let met = match action {
                "insert" => transaction.execute(&prepared, &[key, &number, &text]),
                "select" => transaction.query(&prepared, &[key]).map(|rows| {
                    let is_right = |row: &postgres::Row| {
                        row.get::<_, i32>(1) == number && row.get::<_, String>(2) == text
                    };
                    rows.iter().filter(|row| is_right(row)).count() as u64
                }),
                _ => transaction.execute(&prepared, &[key]),
            };
            if met.map_err(failed)? != 1 {
                return Err(Error::lost(format!(
                    "PostgreSQL lost data: {action} of row {key}"
                )));
            }
        }
        transaction.commit().map_err(failed)
    }
}

fn connect(cluster: &Cluster) -> Result<Client> {
    cluster.config().connect(NoTls).map_err(failed)
}

/// 20 to 100 characters that follow from the key.
fn content(key: i32) -> String {
    let mut text = format!("{key:08}");
    let len = 20 + (key as u32).wrapping_mul(2_654_435_761) as usize % 81;
    while text.len() < len {
        text.push(char::from(
            b'a' + (text.len() as u32 ^ key as u32) as u8 % 26,
        ));
    }
    text
}
