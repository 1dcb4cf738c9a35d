//! The one public error: what the caller should do, what happened, and the cause below.

use larder_catalog::CatalogError;
use larder_segment::SegmentError;
use larder_space::format::NameError;
use std::io;

/// What kind of failure it is; each tells the caller what to do. Edges map it to errno, exit codes
/// and status codes, exhaustively.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// There is no such file, entry, store or database.
    NotFound,
    /// It exists already.
    Exists,
    /// A component that must be a directory is not.
    NotADirectory,
    /// A directory where something else is needed.
    IsADirectory,
    /// The directory still has entries.
    NotEmpty,
    /// An argument makes no sense; fix the input.
    InvalidInput,
    /// A name or path is too long.
    NameTooLong,
    /// The inode has as many names as it can have.
    TooManyLinks,
    /// Too many symbolic links on the way.
    TooManySymlinks,
    /// The offset or length is beyond what a file can have.
    FileTooLarge,
    /// There is no such extended attribute.
    NoAttribute,
    /// A value is longer than the place it is for.
    TooBig,
    /// The database is full; delete something or raise the capacity.
    NoSpace,
    /// The store, database or handle is read-only.
    ReadOnly,
    /// The operation is not allowed on this object, by whomever.
    NotPermitted,
    /// The operation is not supported by this provider or kind of object.
    Unsupported,
    /// The operation would cross a store.
    CrossStore,
    /// Somebody else is using it; try again later.
    Busy,
    /// Somebody else has kept the database's writer lock for as long as this session was to wait;
    /// the message says who.
    TimedOut,
    /// Somebody else has changed what a transaction has read. It has no effect; run it again.
    Conflict,
    /// Stored bytes are damaged; restore the object from a copy.
    Corrupt,
    /// The device or host failed; see the source.
    Io,
    /// A commit's outcome is unknown or the session is closed: reopen the database.
    Stopped,
    /// The directory is not a Larder database.
    NotADatabase,
    /// The database was written by a newer Larder; upgrade.
    NewerFormat,
    /// The database was written by an older Larder; `larder upgrade` converts it.
    OlderFormat,
    /// The user's SQL is wrong, or a constraint refused it.
    Sql,
}

/// A failure: its kind, one line for people (cause and remedy), and the error below, if any.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// With the kind of the standard library that comes nearest; the error itself is its source.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match error.kind {
            ErrorKind::NotFound | ErrorKind::NoAttribute => io::ErrorKind::NotFound,
            ErrorKind::Exists => io::ErrorKind::AlreadyExists,
            ErrorKind::NotADirectory => io::ErrorKind::NotADirectory,
            ErrorKind::IsADirectory => io::ErrorKind::IsADirectory,
            ErrorKind::NotEmpty => io::ErrorKind::DirectoryNotEmpty,
            ErrorKind::InvalidInput | ErrorKind::NotADatabase => io::ErrorKind::InvalidInput,
            ErrorKind::TooManyLinks => io::ErrorKind::TooManyLinks,
            ErrorKind::FileTooLarge | ErrorKind::TooBig => io::ErrorKind::FileTooLarge,
            ErrorKind::NoSpace => io::ErrorKind::StorageFull,
            ErrorKind::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
            ErrorKind::NotPermitted => io::ErrorKind::PermissionDenied,
            ErrorKind::Unsupported | ErrorKind::NewerFormat | ErrorKind::OlderFormat => {
                io::ErrorKind::Unsupported
            }
            ErrorKind::CrossStore => io::ErrorKind::CrossesDevices,
            ErrorKind::Busy | ErrorKind::Conflict => io::ErrorKind::ResourceBusy,
            ErrorKind::TimedOut => io::ErrorKind::TimedOut,
            ErrorKind::Corrupt => io::ErrorKind::InvalidData,
            ErrorKind::NameTooLong
            | ErrorKind::TooManySymlinks
            | ErrorKind::Io
            | ErrorKind::Stopped
            | ErrorKind::Sql => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// `Result` with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of this kind; `context` names the cause and the remedy in one line.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Error {
        Error {
            kind,
            context: context.into(),
            source: None,
        }
    }

    /// The same with the error that caused it.
    pub fn with_source(
        kind: ErrorKind,
        context: impl Into<String>,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        Error {
            kind,
            context: context.into(),
            source: Some(Box::new(source)),
        }
    }

    /// The same for a caller who should do something else.
    pub(crate) fn with_kind(self, kind: ErrorKind) -> Error {
        Error { kind, ..self }
    }

    /// What the caller should do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Where in the user's SQL it is: line and column, from 1, where SQLite knows.
    pub fn position(&self) -> Option<(usize, usize)> {
        match self.source.as_ref()?.downcast_ref()? {
            CatalogError::Sql { position, .. } => *position,
            _ => None,
        }
    }

    /// As a finding of a check, which is no advice to run one.
    pub(crate) fn as_finding(&self) -> String {
        let told = self.to_string();
        let advice = ["; run `larder check`", "; run 'larder check'"];
        let plain = advice.iter().find_map(|advice| told.strip_suffix(advice));
        plain.unwrap_or(&told).to_owned()
    }

    /// Whether the catalog cannot be read for its damage: then [`crate::find_damage`] says more.
    pub fn is_of_catalog(&self) -> bool {
        let source = self
            .source
            .as_ref()
            .and_then(|source| source.downcast_ref());
        matches!(source, Some(CatalogError::Damaged { .. }))
    }

    /// The same error, told with more context in front.
    pub fn context(mut self, what: impl std::fmt::Display) -> Error {
        self.context = match self.context.as_str() {
            "" => what.to_string(),
            context => format!("{what}: {context}"),
        };
        self
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.context)?;
        match &self.source {
            Some(source) if !self.context.is_empty() => write!(f, ": {source}"),
            Some(source) => source.fmt(f),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source
            .as_ref()
            .map(|source| &**source as &(dyn std::error::Error + 'static))
    }
}

/// An operating error of the host.
pub(crate) fn io_error(what: String, error: std::io::Error) -> Error {
    use std::io::ErrorKind as E;
    let kind = match error.kind() {
        E::NotFound => ErrorKind::NotFound,
        E::AlreadyExists => ErrorKind::Exists,
        E::PermissionDenied => ErrorKind::NotPermitted,
        E::ReadOnlyFilesystem => ErrorKind::ReadOnly,
        E::StorageFull | E::QuotaExceeded => ErrorKind::NoSpace,
        E::NotADirectory => ErrorKind::NotADirectory,
        E::InvalidFilename => ErrorKind::NameTooLong,
        _ => ErrorKind::Io,
    };
    Error::with_source(kind, what, error)
}

impl From<CatalogError> for Error {
    fn from(error: CatalogError) -> Error {
        let kind = match &error {
            CatalogError::NotFound { .. } => ErrorKind::NotFound,
            CatalogError::Exists { .. } => ErrorKind::Exists,
            CatalogError::NotADatabase { .. } | CatalogError::Refused { .. } => {
                ErrorKind::NotADatabase
            }
            CatalogError::NewerFormat { .. } => ErrorKind::NewerFormat,
            CatalogError::OlderFormat { .. } => ErrorKind::OlderFormat,
            CatalogError::ReadOnly { .. } => ErrorKind::ReadOnly,
            CatalogError::Busy { why: Some(_), .. } => ErrorKind::TimedOut, // WAIT-1
            CatalogError::Busy { .. } | CatalogError::InUse { .. } => ErrorKind::Busy,
            CatalogError::Constraint { .. } | CatalogError::Sql { .. } => ErrorKind::Sql,
            CatalogError::Corrupt { .. }
            | CatalogError::Damaged { .. }
            | CatalogError::LogDamaged { .. } => ErrorKind::Corrupt,
            CatalogError::NoSpace => ErrorKind::NoSpace,
            CatalogError::Invalid { .. } => ErrorKind::InvalidInput,
            CatalogError::CommitUnknown { .. } | CatalogError::PastEnded => ErrorKind::Stopped,
            CatalogError::Unsupported { .. } => ErrorKind::Unsupported,
            CatalogError::Storage { .. } => ErrorKind::Io,
        };
        Error::with_source(kind, "", error)
    }
}

impl From<NameError> for Error {
    fn from(error: NameError) -> Error {
        let kind = match error {
            NameError::TooLong => ErrorKind::NameTooLong,
            NameError::Empty | NameError::Reserved | NameError::Forbidden => {
                ErrorKind::InvalidInput
            }
        };
        Error::new(kind, error.to_string())
    }
}

impl From<SegmentError> for Error {
    fn from(error: SegmentError) -> Error {
        let kind = match &error {
            SegmentError::NewerFormat { .. } | SegmentError::HasCopies { .. } => {
                ErrorKind::NewerFormat
            }
            SegmentError::OlderFormat { .. } => ErrorKind::OlderFormat,
            SegmentError::NotASegment { .. }
            | SegmentError::WrongDatabase { .. }
            | SegmentError::WrongSegment { .. }
            | SegmentError::TornSuperblock { .. }
            | SegmentError::Truncated { .. }
            | SegmentError::OutOfRange { .. }
            | SegmentError::Checksum { .. } => ErrorKind::Corrupt,
            SegmentError::NoSpace { .. } | SegmentError::NoSpaceToCopy { .. } => ErrorKind::NoSpace,
            SegmentError::Io { .. } => ErrorKind::Io,
            SegmentError::Poisoned { .. } => ErrorKind::Stopped,
        };
        Error::with_source(kind, "", error)
    }
}
