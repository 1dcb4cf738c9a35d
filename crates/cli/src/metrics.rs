//! `--metrics ADDR`: answers Prometheus while a mount is served.
//!
//! GET /metrics and nothing else. Whoever may reach the address may read the numbers; there are no
//! names of files in them.
//!
//! # Concurrency
//! One thread takes clients in and reads what they ask; [`ANSWERS_MAX`] threads answer one client
//! each. The numbers are made under a lock, a leaf, which is not held while a client is written to.
//!
//! # Invariants
//! * `CLI-21` No client keeps others from being answered. It has [`REQUEST_WAIT_MAX`] to ask, in at
//!   most [`REQUEST_BYTES_MAX`], and keeps no thread meanwhile; of more than [`ASKING_MAX`] that
//!   have not asked yet the oldest gives way. Once it has asked, it waits behind at most
//!   [`WAITING_MAX`] others, and keeps a thread for no longer than [`ANSWER_WAIT_MAX`], whether it
//!   reads or not. Whoever comes when there are too many is told so.
//! * `CLI-22` What costs a scan of the catalog is looked at so seldom that it takes at most one
//!   part in [`SURVEY_SHARE`] of the time.

use crate::error::{Failure, Result};
use crate::exposition::expose;
use larder::{Database, FragReport, SpaceReport};
use larder_fuse::Monitor;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Clients that are answered at once.
const ANSWERS_MAX: usize = 8;
/// Clients that have not asked yet.
const ASKING_MAX: usize = 64;
/// Clients that have asked and wait until one of those is answered.
const WAITING_MAX: usize = 64;
/// Longest request line with headers.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// How long a client may take until it has asked.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long it may take then, to the last byte of the answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(5);
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
        self.listener.set_nonblocking(true).or_else(cannot_start)?;
        let (asked, to_answer) = sync_channel(WAITING_MAX);
        let shared = Arc::new((Mutex::new(to_answer), text));
        for _ in 0..ANSWERS_MAX {
            let shared = Arc::clone(&shared);
            start(move || answer_all(&shared.0, &shared.1))?;
        }
        start(move || take_in(&self.listener, &asked))
    }
}

fn start(run: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name("larder-metrics".into());
    thread.spawn(run).map(drop).or_else(cannot_start)
}

fn cannot_start<T>(source: io::Error) -> Result<T> {
    Err(Failure::Io {
        what: "cannot answer metrics".into(),
        source,
    })
}

/// A client that has not asked yet.
struct Asking {
    client: TcpStream,
    said: Vec<u8>,
    deadline: Instant,
}

impl Asking {
    fn new(client: TcpStream) -> io::Result<Asking> {
        client.set_nonblocking(true)?;
        Ok(Asking {
            client,
            said: Vec::new(),
            deadline: Instant::now() + REQUEST_WAIT_MAX,
        })
    }

    /// Takes in what it has said since; `None`: it has not asked yet.
    fn hear(&mut self) -> io::Result<Option<Request>> {
        let mut bytes = [0; 1024];
        loop {
            if let Some(request) = understand(&self.said) {
                return Ok(Some(request));
            }
            match self.client.read(&mut bytes) {
                // The end, or longer than any request should be.
                Ok(0) => return Ok(Some(Request::Odd)),
                Ok(_) if self.said.len() >= REQUEST_BYTES_MAX => return Ok(Some(Request::Odd)),
                Ok(count) => self.said.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Who has asked, and for what.
type Asked = (TcpStream, Request);

/// Takes clients in and hands on those that have asked.
fn take_in(listener: &TcpListener, asked: &SyncSender<Asked>) {
    let mut asking: Vec<Asking> = Vec::new();
    loop {
        if let Err(error) = wait_for_words(listener, &asking) {
            tracing::warn!("metrics cannot be answered: {error}");
            std::thread::sleep(PAUSE);
        }
        match listener.accept() {
            Ok((client, _)) => {
                if asking.len() >= ASKING_MAX {
                    refuse(asking.remove(0).client); // CLI-21
                }
                // What goes wrong with one client is that client's business.
                asking.extend(Asking::new(client).map_err(tell_of_client).ok());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!("metrics cannot be answered: {error}");
                std::thread::sleep(PAUSE);
            }
        }
        let now = Instant::now();
        asking = (asking.into_iter())
            .filter_map(|mut one| match one.hear() {
                Ok(None) => (now < one.deadline).then_some(one),
                Ok(Some(request)) => {
                    if let Err(
                        TrySendError::Full((client, _)) | TrySendError::Disconnected((client, _)),
                    ) = asked.try_send((one.client, request))
                    {
                        refuse(client); // CLI-21
                    }
                    None
                }
                Err(error) => {
                    tell_of_client(error);
                    None
                }
            })
            .collect();
    }
}

/// Tells a client that there are too many, without waiting for it.
fn refuse(mut client: TcpStream) {
    let answer = response(
        "503 Service Unavailable",
        "too many clients ask; try again\n",
    );
    // It has got nothing yet, so this finds room.
    if let Err(error) = client.write(answer.as_bytes()) {
        tell_of_client(error);
    }
}

fn tell_of_client(error: io::Error) {
    tracing::debug!("a client of the metrics: {error}");
}

/// Waits until somebody comes, a client says something, or the time of one is over.
fn wait_for_words(listener: &TcpListener, asking: &[Asking]) -> io::Result<()> {
    let mut watched = vec![PollFd::new(listener, PollFlags::IN)];
    watched.extend((asking.iter()).map(|one| PollFd::new(&one.client, PollFlags::IN)));
    let first = asking.first().map(|one| {
        let left = one.deadline.saturating_duration_since(Instant::now());
        rustix::event::Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        }
    });
    match poll(&mut watched, first.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Answers one client after another.
fn answer_all(clients: &Mutex<Receiver<Asked>>, text: &dyn Fn() -> larder::Result<String>) {
    loop {
        let next = clients
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv();
        let Ok((client, request)) = next else {
            return; // Nobody takes clients in any more.
        };
        if let Err(error) = answer(client, &request, text) {
            tell_of_client(error);
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
                    space: self.database.maintenance().space()?,
                    frag: self.database.maintenance().frag()?,
                    took: began.elapsed(),
                    made: Instant::now(),
                }
            }
        };
        let text = expose(
            &self.monitor.metrics().unwrap_or_default(),
            self.monitor.open_handle_count(),
            &self.database.maintenance().gauges()?,
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
fn answer(
    mut client: TcpStream,
    request: &Request,
    text: impl FnOnce() -> larder::Result<String>,
) -> io::Result<()> {
    client.set_nonblocking(false)?;
    let deadline = Instant::now() + ANSWER_WAIT_MAX;
    let (status, body) = match request {
        Request::Metrics => match text() {
            Ok(text) => ("200 OK", text),
            Err(error) => ("500 Internal Server Error", format!("{error}\n")),
        },
        Request::Elsewhere => ("404 Not Found", "the numbers are at /metrics\n".into()),
        Request::Other => ("405 Method Not Allowed", "GET is all there is\n".into()),
        Request::Odd => ("400 Bad Request", "this is no HTTP request\n".into()),
    };
    let answer = response(status, &body);
    let mut rest = answer.as_bytes();
    while !rest.is_empty() {
        client.set_write_timeout(Some(left(deadline)?))?;
        rest = &rest[client.write(rest)?..];
    }
    Ok(())
}

fn response(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[derive(Debug, PartialEq, Eq)]
enum Request {
    Metrics,
    Elsewhere,
    Other,
    Odd,
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

    /// Serves one number, and says where.
    fn serve() -> SocketAddr {
        let endpoint = Endpoint::bind("127.0.0.1:0").unwrap();
        let address = endpoint.address();
        endpoint.serve_text(|| Ok("larder_up 1\n".into())).unwrap();
        address
    }

    /// What a client is answered; nothing when it is left.
    fn talk(address: SocketAddr, said: &[u8]) -> String {
        let mut client = TcpStream::connect(address).unwrap();
        // It may hang up before all is said.
        drop(client.write_all(said));
        drop(client.shutdown(std::net::Shutdown::Write));
        io::read_to_string(client).unwrap_or_default()
    }

    const ASKS: &[u8] = b"GET /metrics HTTP/1.1\r\n\r\n";

    #[test]
    fn odd_clients_are_got_rid_of() {
        let address = serve();
        let answered = talk(address, ASKS);
        assert!(answered.starts_with("HTTP/1.1 200 OK\r\n"), "{answered}");
        assert!(answered.ends_with("\r\n\r\nlarder_up 1\n"), "{answered}");
        assert!(talk(address, b"GET").starts_with("HTTP/1.1 400 Bad Request\r\n"));
        // Reset, when it has not read all that was said.
        let long = talk(address, &vec![b'x'; 100 * REQUEST_BYTES_MAX]);
        assert!(long.is_empty() || long.contains("400"), "CLI-21: {long}");
    }

    #[test]
    fn a_silent_client_is_left() {
        let address = serve();
        let began = Instant::now();
        let mut silent = TcpStream::connect(address).unwrap();
        assert_eq!(silent.read(&mut [0]).unwrap(), 0, "CLI-21: it is closed");
        assert!(began.elapsed() >= REQUEST_WAIT_MAX / 2, "CLI-21");
    }

    /// All that ask at once are answered one after the other, or told that they are too many.
    #[test]
    fn nobody_who_asks_is_left_without_an_answer() {
        let endpoint = Endpoint::bind("127.0.0.1:0").unwrap();
        let address = endpoint.address();
        let slow = || {
            std::thread::sleep(Duration::from_millis(300));
            Ok("larder_up 1\n".into())
        };
        endpoint.serve_text(slow).unwrap();
        for (count, refused_min, refused_max) in [
            (ANSWERS_MAX + WAITING_MAX / 2, 0, 0),
            (2 * (ANSWERS_MAX + WAITING_MAX), 1, usize::MAX),
        ] {
            let clients: Vec<TcpStream> = (0..count)
                .map(|_| {
                    let mut client = TcpStream::connect(address).unwrap();
                    client.write_all(ASKS).unwrap();
                    client
                })
                .collect();
            let mut refused_count = 0;
            for client in clients {
                let told = io::read_to_string(client).unwrap();
                match told.starts_with("HTTP/1.1 503 ") {
                    true => refused_count += 1,
                    false => assert!(told.ends_with("larder_up 1\n"), "CLI-21: {told:?}"),
                }
            }
            let is_expected = (refused_min..=refused_max).contains(&refused_count);
            assert!(is_expected, "CLI-21: {refused_count} of {count}");
        }
    }

    #[test]
    fn silent_clients_keep_nobody_out() {
        let address = serve();
        let began = Instant::now();
        let mut silent: Vec<TcpStream> = (0..100)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        assert!(talk(address, ASKS).ends_with("larder_up 1\n"), "CLI-21");
        // With the time of one for each place, one after the other, it was 26 s.
        assert!(began.elapsed() < 10 * REQUEST_WAIT_MAX, "CLI-21");
        // The oldest has given way, and is told why.
        let told = io::read_to_string(&mut silent[0]).unwrap();
        assert!(told.starts_with("HTTP/1.1 503 "), "CLI-21: {told}");
        // Nobody who has asked and does not read keeps others out either.
        let idle: Vec<TcpStream> = (1..ANSWERS_MAX)
            .map(|_| {
                let mut client = TcpStream::connect(address).unwrap();
                client.write_all(ASKS).unwrap();
                client
            })
            .collect();
        assert!(talk(address, ASKS).ends_with("larder_up 1\n"), "CLI-21");
        drop(idle);
    }
}
