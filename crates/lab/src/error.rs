//! Why something of the laboratory ends early: one line with cause and remedy, and what the runner
//! does about it.

/// `Result` with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What the runner does about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The volume is full: a result, recorded with the storage age at which it happened.
    NoSpace,
    /// The backend says that it does not have what it confirmed, or hands out other bytes: it is
    /// caught, and the run ends.
    Lost,
    /// This machine cannot make this backend: said in one line, and the others go on.
    Cannot,
    /// Somebody asked to stop: what is complete stays.
    Stopped,
    /// Anything else ends the run.
    Failed,
}

/// A failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    /// What the runner does about it.
    pub kind: Kind,
    /// Cause and remedy, one line.
    pub text: String,
}

impl Error {
    /// An error of this kind.
    pub fn new(kind: Kind, text: impl Into<String>) -> Error {
        Error {
            kind,
            text: text.into(),
        }
    }

    /// Something failed.
    pub fn failed(text: impl Into<String>) -> Error {
        Error::new(Kind::Failed, text)
    }

    /// The machine cannot do it.
    pub fn cannot(text: impl Into<String>) -> Error {
        Error::new(Kind::Cannot, text)
    }

    /// A backend does not have what it confirmed.
    pub fn lost(text: impl Into<String>) -> Error {
        Error::new(Kind::Lost, text)
    }
}

/// Adds what was being done to a failure from below.
pub trait Said<T> {
    /// `what` is evaluated only on failure.
    fn said(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Error>> Said<T> for std::result::Result<T, E> {
    fn said(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| {
            let Error { kind, text } = error.into();
            Error::new(kind, format!("{}: {text}", what()))
        })
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        let kind = match error.kind() {
            std::io::ErrorKind::StorageFull => Kind::NoSpace,
            _ => Kind::Failed,
        };
        Error::new(kind, error.to_string())
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Error {
        std::io::Error::from(errno).into()
    }
}

impl From<larder::Error> for Error {
    fn from(error: larder::Error) -> Error {
        let kind = match error.kind() {
            larder::ErrorKind::NoSpace => Kind::NoSpace,
            larder::ErrorKind::Corrupt | larder::ErrorKind::NotFound => Kind::Lost,
            _ => Kind::Failed,
        };
        Error::new(kind, error.to_string())
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Error {
        let kind = match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => Kind::NoSpace,
            Some(rusqlite::ErrorCode::DatabaseCorrupt) => Kind::Lost,
            _ if error == rusqlite::Error::QueryReturnedNoRows => Kind::Lost,
            _ => Kind::Failed,
        };
        Error::new(kind, error.to_string())
    }
}
