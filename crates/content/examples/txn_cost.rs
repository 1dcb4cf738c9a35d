//! What a short transaction of one row and one file of 10 KB costs: wall clock and CPU, µs each.

use larder::{CreateOptions, Database, DatabaseOptions, SqlValue, TransactionOptions};
use std::time::{Duration, Instant};

fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks = |index: usize| {
        fields
            .get(index)
            .and_then(|f| f.parse::<u64>().ok())
            .unwrap_or(0)
    };
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count: u64 = std::env::args()
        .nth(2)
        .map_or(Ok(2000), |text| text.parse())?;
    let path = std::env::args()
        .nth(1)
        .ok_or("usage: txn_cost DIRECTORY [COUNT]")?;
    let path = std::path::Path::new(&path).join("cost.larder");
    Database::create(&path, &CreateOptions::default())?;
    let database = Database::open(&path, DatabaseOptions::default())?;
    database.sql().open(false)?.execute(
        "CREATE TABLE document (id INTEGER PRIMARY KEY, path TEXT, note TEXT)",
        &mut |_| Ok(()),
    )?;
    let bytes = vec![7; 10_000];
    for (what, has_row) in [
        ("file and row", true),
        ("file", false),
        ("file and row again", true),
    ] {
        let (began, cpu_before) = (Instant::now(), cpu());
        for index in 0..count {
            let options = TransactionOptions {
                is_immediate: true,
                ..TransactionOptions::default()
            };
            let txn = database.transactions().begin_with(&options)?;
            txn.files()
                .write(format!("/{what}-{index}").as_bytes(), &bytes)?;
            if has_row {
                txn.sql(
                    "INSERT INTO document VALUES (NULL, ?1, ?2)",
                    &[SqlValue::Text("p".into()), SqlValue::Text("n".into())],
                )?;
            }
            txn.commit()?;
        }
        let each = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
        println!(
            "{what}: {:.0} µs, {:.0} µs of CPU",
            each(began.elapsed()),
            each(cpu() - cpu_before)
        );
    }
    let began = Instant::now();
    for _ in 0..count {
        let txn = database.transactions().begin()?;
        txn.nodes().resolve(b"/file-0", true)?;
        txn.commit()?;
    }
    println!(
        "read-only: {:.1} µs",
        began.elapsed().as_secs_f64() * 1e6 / count as f64
    );
    database.close()?;
    std::fs::remove_dir_all(&path)?;
    Ok(())
}
