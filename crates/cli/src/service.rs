//! Word to a service manager that waits for it: sd_notify(3), `Type=notify` of systemd.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const SOCKET: &str = "NOTIFY_SOCKET";

/// Whether a service manager has started this process and listens.
pub(crate) fn is_supervised() -> bool {
    std::env::var_os(SOCKET).is_some()
}

/// Tells the service manager `state`, like `READY=1`; nothing when none listens. A manager that
/// cannot be told is logged: it will say so itself, by its timeout.
pub(crate) fn tell(state: &str) {
    let Some(path) = std::env::var_os(SOCKET) else {
        return;
    };
    if let Err(error) = send(path.as_bytes(), state) {
        tracing::warn!("the service manager cannot be told '{state}': {error}");
    }
}

fn send(path: &[u8], state: &str) -> io::Result<()> {
    let address = match path {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_hears_it_at_either_kind_of_address() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str().as_bytes(), "READY=1").unwrap();
        let mut heard = [0; 16];
        let length = listener.recv(&mut heard).unwrap();
        assert_eq!(&heard[..length], b"READY=1");

        let name = format!("larder-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixDatagram::bind_addr(&address).unwrap();
        send(format!("@{name}").as_bytes(), "STOPPING=1").unwrap();
        let length = listener.recv(&mut heard).unwrap();
        assert_eq!(&heard[..length], b"STOPPING=1");
        assert!(send(b"/no/such/socket", "x").is_err());
    }
}
