//! A client's connection and its statements, as their owner hands them over.

use rusqlite::{Connection, ffi};
use std::sync::Mutex;

/// The connections that are registered, by address: once more would replace what SQLite is about to
/// call.
pub(super) static REGISTERED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The connection of a client. Its owner keeps it open for as long as this is used.
#[derive(Debug, Clone, Copy)]
pub struct ClientHandle(pub(super) *mut ffi::sqlite3);

// SAFETY: SQLite's own mutex keeps the threads that use a connection apart, or its owner uses one
// thread.
unsafe impl Send for ClientHandle {}

// SAFETY: as above.
unsafe impl Sync for ClientHandle {}

/// Which locks a client's transaction has on the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientLocks {
    /// None: it has not read anything yet.
    None,
    /// It has a snapshot.
    Snapshot,
    /// It has SQLite's write lock.
    Write,
}

/// A statement of a client's that begins.
#[derive(Debug, Clone, Copy)]
pub struct ClientStatement<'a> {
    /// Its text.
    pub text: &'a [u8],
    /// It changes no table, and takes no write lock.
    pub is_read_only: bool,
}

/// A statement of a client's that ends: while SQLite tells of it, it may still be running.
#[derive(Debug, Clone, Copy)]
pub struct ClientEnd(pub(super) *mut ffi::sqlite3_stmt);

/// Who is told of what a client does. Nothing of it is called while another call of it runs, but
/// for what the call itself makes SQLite do.
pub trait ClientWatch: Send + Sync {
    /// A statement begins, before it takes any lock. Also each one that is nested in another.
    fn begins(&self, statement: Option<ClientStatement<'_>>);
    /// A statement has ended, or is about to give up what it has locked.
    fn ended(&self, statement: ClientEnd);
    /// The transaction is enlisted for.
    fn enlisted(&self);
    /// Before the commit of a transaction that was enlisted for; an error refuses it, and rolls
    /// back.
    fn before_commit(&self) -> std::result::Result<(), String>;
    /// Before a savepoint of such a transaction.
    fn before_savepoint(&self) -> std::result::Result<(), String>;
    /// Such a transaction went back to a savepoint, or took back a statement.
    fn went_back(&self);
    /// Such a transaction has ended.
    fn after_end(&self);
    /// The connection may be about to close (`CLIENT-2`).
    fn disconnect(&self);
}

/// What a catalog has that reads and writes on a client's connection.
pub(crate) struct ClientSide {
    pub(super) handle: ClientHandle,
    /// For what runs beside a call of the catalog.
    pub(super) beside: Mutex<Connection>,
}
