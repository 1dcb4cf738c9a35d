//! Short ways to ask by SQL.

use larder::{Caller, Database, Error, Name, NewNode, NodeId, SqlSession, SqlValue, Transaction};

pub fn integer(value: i64) -> SqlValue {
    SqlValue::Integer(value)
}

pub fn text(value: &str) -> SqlValue {
    SqlValue::Text(value.into())
}

pub fn blob(value: &[u8]) -> SqlValue {
    SqlValue::Blob(value.into())
}

/// All values of all rows.
pub fn run(session: &mut SqlSession, sql: &str) -> Result<Vec<SqlValue>, Error> {
    let mut values = Vec::new();
    session.execute(sql, &mut |row| {
        values.extend(row.values);
        Ok(())
    })?;
    Ok(values)
}

pub fn one(session: &mut SqlSession, sql: &str) -> SqlValue {
    let mut values = run(session, sql).unwrap();
    assert_eq!(values.len(), 1, "{sql}: {values:?}");
    values.remove(0)
}

pub fn told(session: &mut SqlSession, sql: &str) -> String {
    run(session, sql).unwrap_err().to_string()
}

pub fn ask(txn: &Transaction, sql: &str) -> SqlValue {
    let result = txn.sql(sql, &[]).unwrap();
    result.rows[0].values[0].clone()
}

pub fn directory(db: &Database, parent: NodeId, name: &str) -> NodeId {
    let name = Name::new(name.as_bytes()).unwrap();
    db.nodes()
        .create_node(parent, &name, NewNode::Directory, 0o755, Caller::current())
        .unwrap()
        .node
}
