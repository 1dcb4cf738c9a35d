//! `--metrics ADDR`: answers Prometheus while a mount is served.
//!
//! GET /metrics and nothing else. Whoever may reach the address may read the numbers; there are no
//! names of files in them.
//!
//! # Concurrency
//! [`CLIENTS_MAX`] threads answer one client each; more clients wait for one of them. The numbers
//! are made under a lock, a leaf, which is not held while a client is written to.
//!
//! # Invariants
//! * `CLI-21` No client keeps a thread for longer than [`REQUEST_WAIT_MAX`] without having asked
//!   and [`CLIENT_WAIT_MAX`] in all, or makes it hold more than [`REQUEST_BYTES_MAX`], whatever it
//!   sends or does not read.
//! * `CLI-22` What costs a scan of the catalog is looked at so seldom that it takes at most one
//!   part in [`SURVEY_SHARE`] of the time.

use crate::error::{Failure, Result};
use crate::exposition::expose;
use larder::{Database, FragReport, SpaceReport};
use larder_fuse::Monitor;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Clients that are answered at once.
const CLIENTS_MAX: usize = 8;
/// Longest request line with headers.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// How long a client may take, from connecting to the last byte of the answer.
const CLIENT_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long it may take until it has asked: less, so that idle ones make room.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(2);
/// A survey that took one second is made again after so many seconds, and never sooner than
/// [`SURVEY_AGE_MIN`].
const SURVEY_SHARE: u32 = 100;
const SURVEY_AGE_MIN: Duration = Duration::from_secs(10);
/// After an error of the listener, before it is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// An address that is listened at, before anything is mounted.
pub(crate) struct Endpoint {
    listener: TcpListener,
    address: SocketAddr,
}

impl Endpoint {
    /// Listens at `address`: `HOST:PORT`, port 0 for any.
    pub(crate) fn bind(address: &str) -> Result<Endpoint> {
        let fail = |what: String| {
            Failure::Other(format!(
                "cannot answer metrics at '{address}': {what}; write an address of this host and \
                 a free \
                 port, like 127.0.0.1:9190"
            ))
        };
        let parsed: SocketAddr = address
            .parse()
            .map_err(|_| fail("it is no address and port".into()))?;
        let bound = TcpListener::bind(parsed)
            .and_then(|listener| Ok((listener.local_addr()?, listener)))
            .map_err(|error| fail(error.to_string()))?;
        Ok(Endpoint {
            address: bound.0,
            listener: bound.1,
        })
    }

    /// Where it is.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers from now on, from threads that live as long as the process.
    pub(crate) fn serve(self, database: Database, monitor: Monitor) -> Result<()> {
        let source = Mutex::new(Source {
            database,
            monitor,
            survey: None,
        });
        self.serve_text(move || source.lock().unwrap_or_else(PoisonError::into_inner).text())
    }

    fn serve_text(
        self,
        text: impl Fn() -> larder::Result<String> + Send + Sync + 'static,
    ) -> Result<()> {
        let shared = Arc::new((self.listener, text));
        for _ in 0..CLIENTS_MAX {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("larder-metrics".into())
                .spawn(move || answer_all(&shared.0, &shared.1))
                .map_err(|source| Failure::Io {
                    what: "cannot start a thread".into(),
                    source,
                })?;
        }
        Ok(())
    }
}

/// Answers one client after another.
fn answer_all(listener: &TcpListener, text: &dyn Fn() -> larder::Result<String>) {
    loop {
        match listener.accept() {
            // What goes wrong with one client is that client's business.
            Ok((client, _)) => {
                if let Err(error) = answer(client, text) {
                    tracing::debug!("a client of the metrics: {error}");
                }
            }
            Err(error) => {
                tracing::warn!("metrics cannot be answered: {error}");
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// Where the numbers come from.
struct Source {
    database: Database,
    monitor: Monitor,
    survey: Option<Survey>,
}

/// What a scan of the catalog has found.
struct Survey {
    space: SpaceReport,
    frag: FragReport,
    made: Instant,
    took: Duration,
}

impl Source {
    fn text(&mut self) -> larder::Result<String> {
        let survey = match self.survey.take() {
            Some(survey) if survey.made.elapsed() <= good_for(survey.took) => survey,
            _ => {
                let began = Instant::now();
                Survey {
                    space: self.database.space()?,
                    frag: self.database.frag()?,
                    took: began.elapsed(),
                    made: Instant::now(),
                }
            }
        };
        let text = expose(
            &self.monitor.metrics().unwrap_or_default(),
            self.monitor.open_handle_count(),
            &self.database.gauges()?,
            &survey.space,
            &survey.frag,
        );
        self.survey = Some(survey);
        Ok(text)
    }
}

/// How long a survey is good that took so long (`CLI-22`).
fn good_for(took: Duration) -> Duration {
    (took * SURVEY_SHARE).max(SURVEY_AGE_MIN)
}

/// Answers one client and closes.
fn answer(mut client: TcpStream, text: impl FnOnce() -> larder::Result<String>) -> io::Result<()> {
    let began = Instant::now();
    let deadline = began + CLIENT_WAIT_MAX;
    let (status, body) = match read_request(&mut client, began + REQUEST_WAIT_MAX)? {
        Request::Metrics => match text() {
            Ok(text) => ("200 OK", text),
            Err(error) => ("500 Internal Server Error", format!("{error}\n")),
        },
        Request::Elsewhere => ("404 Not Found", "the numbers are at /metrics\n".into()),
        Request::Other => ("405 Method Not Allowed", "GET is all there is\n".into()),
        Request::Odd => ("400 Bad Request", "this is no HTTP request\n".into()),
    };
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut rest = answer.as_bytes();
    while !rest.is_empty() {
        client.set_write_timeout(Some(left(deadline)?))?;
        rest = &rest[client.write(rest)?..];
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Request {
    Metrics,
    Elsewhere,
    Other,
    Odd,
}

fn read_request(client: &mut TcpStream, deadline: Instant) -> io::Result<Request> {
    let mut bytes = vec![0; REQUEST_BYTES_MAX];
    let mut length = 0;
    loop {
        if let Some(request) = understand(&bytes[..length]) {
            return Ok(request);
        }
        client.set_read_timeout(Some(left(deadline)?))?;
        match client.read(&mut bytes[length..])? {
            // The end, or longer than any request should be.
            0 => return Ok(Request::Odd),
            count => length += count,
        }
    }
}

/// `CLI-21`: what is left of a client's time.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left)
}

/// What is asked for; `None`: the headers are not all there.
fn understand(bytes: &[u8]) -> Option<Request> {
    let ends = |mark: &[u8]| bytes.windows(mark.len()).any(|window| window == mark);
    if !ends(b"\r\n\r\n") && !ends(b"\n\n") {
        return None;
    }
    let line = bytes.split(|&byte| byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok().map(str::trim_end);
    let words: Vec<&str> = line.unwrap_or_default().split(' ').collect();
    Some(match words[..] {
        [method, target, version] if version.starts_with("HTTP/1.") => {
            let path = target.split('?').next().unwrap_or(target);
            match (method, path) {
                ("GET", "/metrics") => Request::Metrics,
                ("GET", _) => Request::Elsewhere,
                _ => Request::Other,
            }
        }
        _ => Request::Odd,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;

    #[test]
    fn requests_are_told_apart() {
        for (text, expected) in [
            (
                "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
                Some(Request::Metrics),
            ),
            ("GET /metrics?a=b HTTP/1.0\n\n", Some(Request::Metrics)),
            ("GET / HTTP/1.1\r\n\r\n", Some(Request::Elsewhere)),
            ("POST /metrics HTTP/1.1\r\n\r\n", Some(Request::Other)),
            ("GET /metrics\r\n\r\n", Some(Request::Odd)),
            ("\u{fe}\r\n\r\n", Some(Request::Odd)),
            ("GET /metrics HTTP/1.1\r\nHost:", None),
            ("", None),
        ] {
            assert_eq!(understand(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn surveys_take_a_bounded_share_of_the_time() {
        for took in [0, 1, 50, 10_000].map(Duration::from_millis) {
            let age = good_for(took);
            assert!(
                took * SURVEY_SHARE <= age && age >= SURVEY_AGE_MIN,
                "CLI-22"
            );
        }
    }

    #[test]
    fn addresses_are_checked_before_anything_is_mounted() {
        let taken = Endpoint::bind("127.0.0.1:0").unwrap();
        assert_ne!(taken.address().port(), 0);
        for bad in [
            "nonsense",
            "127.0.0.1",
            "192.0.2.1:80",
            &taken.address().to_string(),
        ] {
            let error = Endpoint::bind(bad).err().unwrap().line().unwrap();
            assert!(
                error.contains(bad) && error.contains("; write an address"),
                "{error}"
            );
        }
    }

    #[test]
    fn odd_clients_are_got_rid_of() {
        let endpoint = Endpoint::bind("127.0.0.1:0").unwrap();
        let talk = |said: &[u8]| -> String {
            let mut client = TcpStream::connect(endpoint.address()).unwrap();
            let (server, _) = endpoint.listener.accept().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // It may hang up before all is said.
                    drop(client.write_all(said));
                    drop(client.shutdown(std::net::Shutdown::Write));
                });
                let answered = answer(server, || Ok("larder_up 1\n".into()));
                assert!(
                    answered.is_ok() || said.len() > REQUEST_BYTES_MAX,
                    "{answered:?}"
                );
            });
            let mut line = String::new();
            // Reset, when it has not read all that was said.
            drop(io::BufReader::new(&client).read_line(&mut line));
            line
        };
        assert_eq!(
            talk(b"GET /metrics HTTP/1.1\r\n\r\n"),
            "HTTP/1.1 200 OK\r\n"
        );
        assert_eq!(talk(b"GET"), "HTTP/1.1 400 Bad Request\r\n");
        let long = talk(&vec![b'x'; 100 * REQUEST_BYTES_MAX]);
        assert!(long.is_empty() || long.contains("400"), "CLI-21: {long}");
    }

    #[test]
    fn a_silent_client_is_left() {
        let endpoint = Endpoint::bind("127.0.0.1:0").unwrap();
        let _silent = TcpStream::connect(endpoint.address()).unwrap();
        let (mut server, _) = endpoint.listener.accept().unwrap();
        let soon = Instant::now() + Duration::from_millis(30);
        assert!(read_request(&mut server, soon).is_err(), "CLI-21");
        assert!(soon.elapsed() < CLIENT_WAIT_MAX, "CLI-21");
    }

    #[test]
    fn clients_do_not_wait_for_each_other() {
        let endpoint = Endpoint::bind("127.0.0.1:0").unwrap();
        let address = endpoint.address();
        endpoint.serve_text(|| Ok("larder_up 1\n".into())).unwrap();
        let ask = || {
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            io::read_to_string(client).unwrap()
        };
        let began = Instant::now();
        // One says nothing, one does not read: another is answered beside them.
        let idle: Vec<TcpStream> = (1..CLIENTS_MAX)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        assert!(ask().ends_with("larder_up 1\n"), "CLI-21");
        assert!(began.elapsed() < REQUEST_WAIT_MAX, "CLI-21");
        // With all places taken it comes to its turn when idle ones are left.
        let more = TcpStream::connect(address).unwrap();
        assert!(ask().ends_with("larder_up 1\n"), "CLI-21");
        assert!(began.elapsed() < 3 * CLIENT_WAIT_MAX, "CLI-21");
        drop((idle, more));
    }
}
