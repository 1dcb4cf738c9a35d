//! The rooms of a database: what can be done with it, by subject.
//!
//! [`Database`] is the door. Each of its methods here leads to a room, which borrows the database
//! and costs nothing.

use crate::database::Database;

/// Declares rooms: the type of each, and the method that leads to it.
macro_rules! rooms {
    ($($(#[doc = $doc:literal])* $room:ident $door:ident)*) => {
        $(
            $(#[doc = $doc])*
            #[derive(Clone, Copy)]
            pub struct $room<'d> {
                pub(crate) database: &'d Database,
            }
        )*

        impl Database {
            $(
                #[doc = concat!("The room [`", stringify!($room), "`].")]
                pub fn $door(&self) -> $room<'_> {
                    $room { database: self }
                }
            )*
        }
    };
}

rooms! {
    /// Files and directories by their paths, as `std::fs` has them.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("a.larder");
    /// # larder::Database::create(&path, &larder::CreateOptions::default())?;
    /// # let database = larder::Database::open(&path, larder::DatabaseOptions::default())?;
    /// use std::io::Write;
    ///
    /// let files = database.files();
    /// files.create_dir_all("/2026/may")?;
    /// files.create("/2026/may/notes")?.write_all(b"sunny")?;
    /// files.options().append(true).open("/2026/may/notes")?.write_all(b", windy")?;
    /// assert_eq!(files.read("/2026/may/notes")?, b"sunny, windy");
    /// for entry in files.read_dir("/2026/may")? {
    ///     assert_eq!(entry?.name.as_bytes(), b"notes");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Files files
    /// One call per POSIX primitive, on nodes: what a mount needs.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("a.larder");
    /// # larder::Database::create(&path, &larder::CreateOptions::default())?;
    /// # let database = larder::Database::open(&path, larder::DatabaseOptions::default())?;
    /// use larder::{Caller, Name, NodeId};
    ///
    /// let (name, caller) = (Name::new(b"notes")?, Caller::current());
    /// let nodes = database.nodes();
    /// let (made, file) = nodes.create_file(NodeId::ROOT, &name, 0o600, caller, true)?;
    /// file.write_at(0, b"sunny")?;
    /// assert_eq!(nodes.lookup(NodeId::ROOT, &name)?.node, made.node);
    /// assert_eq!(nodes.metadata(made.node)?.size_bytes, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Nodes nodes
    /// Attributes of nodes beside those of stat(2): extended ones, flags, the time of access.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("a.larder");
    /// # larder::Database::create(&path, &larder::CreateOptions::default())?;
    /// # let database = larder::Database::open(&path, larder::DatabaseOptions::default())?;
    /// let node = database.files().write("/a.jpg", "...")?.node;
    /// let attributes = database.attributes();
    /// attributes.set(node, b"user.camera", b"X100", larder::XattrMode::Set)?;
    /// assert_eq!(attributes.get(node, b"user.camera")?, b"X100");
    /// assert_eq!(attributes.list(node)?, [b"user.camera"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Attributes attributes
    /// What the database and its stores were: what happened, how long it stays readable, and the
    /// way back. [`Database::as_of`] opens a moment.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("a.larder");
    /// # larder::Database::create(&path, &larder::CreateOptions::default())?;
    /// # let database = larder::Database::open(&path, larder::DatabaseOptions::default())?;
    /// use larder::{Moment, RestoreOptions};
    ///
    /// database.files().write("/notes", "sunny")?;
    /// database.sync()?;
    /// let before = Moment::At(database.now_ns());
    /// database.files().remove_file("/notes")?;
    /// let past = database.as_of(&before)?;
    /// assert_eq!(past.files().read("/notes")?, b"sunny");
    /// database.history().restore(&past, Some(b"/notes"), &RestoreOptions::default())?;
    /// assert_eq!(database.files().read("/notes")?, b"sunny");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    History history
    /// Moments with a name, and their seals.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("a.larder");
    /// # larder::Database::create(&path, &larder::CreateOptions::default())?;
    /// # let database = larder::Database::open(&path, larder::DatabaseOptions::default())?;
    /// database.files().write("/notes", "sunny")?;
    /// database.snapshots().create("before")?;
    /// database.files().write("/notes", "rain")?;
    /// let before = database.as_of(&larder::Moment::Snapshot("before".into()))?;
    /// assert_eq!(before.files().read("/notes")?, b"sunny");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Snapshots snapshots
    /// SQL, now and as of a moment, and the tables that keep their past.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("a.larder");
    /// # larder::Database::create(&path, &larder::CreateOptions::default())?;
    /// # let database = larder::Database::open(&path, larder::DatabaseOptions::default())?;
    /// database.files().write("/notes", "sunny")?;
    /// let mut sizes = Vec::new();
    /// let mut session = database.sql().open(true)?;
    /// session.execute("SELECT size FROM main JOIN main_path USING (ino)", &mut |row| {
    ///     sizes.push(row.values[0].clone());
    ///     Ok(())
    /// })?;
    /// assert!(sizes.contains(&larder::SqlValue::Integer(5)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Sql sql
    /// Transactions over files and rows: one commit, or nothing.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("a.larder");
    /// # larder::Database::create(&path, &larder::CreateOptions::default())?;
    /// # let database = larder::Database::open(&path, larder::DatabaseOptions::default())?;
    /// database.transactions().run(|txn| {
    ///     txn.files().write("/a.jpg", "...")?;
    ///     txn.sql("CREATE TABLE album (path TEXT PRIMARY KEY)", &[])?;
    ///     txn.sql("INSERT INTO album VALUES ('/a.jpg')", &[])?;
    ///     Ok(())
    /// })?;
    /// assert!(database.files().metadata("/a.jpg")?.is_file());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Transactions transactions
    /// The stores: trees of their own, each with a table of its own.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("a.larder");
    /// # larder::Database::create(&path, &larder::CreateOptions::default())?;
    /// # let database = larder::Database::open(&path, larder::DatabaseOptions::default())?;
    /// database.stores().create("photos", "files", None, None)?;
    /// database.files().write("/photos/a.jpg", "...")?;
    /// assert_eq!(database.stores().at(b"/photos")?, "photos");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Stores stores
    /// How full, how fragmented, how sound the database is, and what keeps it so.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("a.larder");
    /// # larder::Database::create(&path, &larder::CreateOptions::default())?;
    /// # let database = larder::Database::open(&path, larder::DatabaseOptions::default())?;
    /// database.files().write("/large", vec![1; 1 << 20])?;
    /// database.sync()?;
    /// assert_eq!(database.maintenance().frag()?.fragments_per_object_mean, 1.0);
    /// assert!(database.maintenance().check(true, &mut |_, _| {})?.findings.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Maintenance maintenance
    /// The change feed: what each commit changed, for those who follow it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("a.larder");
    /// # larder::Database::create(&path, &larder::CreateOptions::default())?;
    /// # let database = larder::Database::open(&path, larder::DatabaseOptions::default())?;
    /// database.feed().set(true)?;
    /// database.files().write("/notes", "sunny")?;
    /// database.sync()?;
    /// let bounds = database.feed().bounds()?;
    /// assert!(bounds.is_on && bounds.newest > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Feed feed
    /// This session beside the others of the database: what a mount needs to know of them.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("a.larder");
    /// # larder::Database::create(&path, &larder::CreateOptions::default())?;
    /// # let database = larder::Database::open(&path, larder::DatabaseOptions::default())?;
    /// database.sessions().join_company(true)?;
    /// assert!(!database.sessions().has_writers_beside());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Sessions sessions
}
