//! A service without a transport: refusals, panics, interrupts.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::arguments::LockRequest;
use crate::device::Device;
use crate::flags::InitFlags;
use crate::relief::{NoRelief, Wait};
use crate::request::Request;
use crate::values::NodeNumber;
use crate::wire;
use std::sync::Mutex;

/// Panics when it looks for "panic" or in the step that it is told, waits in `setlkw`, and notes
/// how requests end.
#[derive(Default)]
struct Odd {
    panics_in: Mutex<&'static str>,
    ended: Mutex<Vec<(Opcode, Outcome)>>,
    done: Mutex<Vec<&'static str>>,
}

impl Filesystem for Odd {
    type Span = ();

    fn init(&mut self, _: InitFlags) -> InitFlags {
        InitFlags::NONE
    }

    fn begin(&self, _: &Request) {
        self.step("begin");
    }

    fn describe(&self, _: &mut (), _: &Request, _: &crate::Detail<'_>) {
        self.step("describe");
    }

    fn end(&self, call: Call<'_, ()>, outcome: &Outcome) {
        let mut ended = self.ended.lock().unwrap();
        ended.push((call.request.opcode, *outcome));
        drop(ended);
        self.step("end");
    }

    fn lookup(&self, _: &mut Call<'_, ()>, name: &[u8]) -> Result<crate::Entry, Errno> {
        assert!(name != b"panic", "as asked");
        Err(Errno::ENOENT)
    }

    fn readlink(&self, call: &mut Call<'_, ()>) -> Result<Vec<u8>, Errno> {
        assert_eq!(call.request.node, NodeNumber::ROOT);
        Ok(b"target".to_vec())
    }

    fn setlk(&self, call: &mut Call<'_, ()>, _: LockRequest) -> Result<(), Errno> {
        let reserved = call.reserve_wait()?;
        self.done.lock().unwrap().push("set");
        reserved.wait(|| self.done.lock().unwrap().push("waits"));
        Ok(())
    }

    fn setlkw(&self, call: &mut Call<'_, ()>, lock: LockRequest) -> Result<(), Errno> {
        if lock.lock.kind == libc::F_WRLCK {
            return self.setlk(call, lock);
        }
        while !call.is_interrupted() {
            call.park(None);
        }
        Err(Errno::EINTR)
    }
}

impl Odd {
    fn step(&self, step: &str) {
        let told = *self.panics_in.lock().unwrap();
        assert!(told != step, "as told");
    }
}

fn service(lock_wait_max: usize) -> Service<Odd> {
    let dialect = Dialect::default();
    let in_flight = InFlight::new(3);
    while in_flight.reserve().is_some() {}
    Service::new(Odd::default(), dialect, in_flight, lock_wait_max)
}

fn request(opcode: u32, unique: u64, body: &[u8]) -> Vec<u8> {
    let header = wire::InHeader {
        len: (size_of::<wire::InHeader>() + body.len()) as u32,
        opcode,
        unique,
        nodeid: 1,
        ..wire::InHeader::default()
    };
    [wire::bytes_of(&header), body].concat()
}

fn answer(service: &Service<Odd>, slot: usize, bytes: &[u8]) -> Answer {
    answer_beside(service, &NoRelief, slot, bytes)
}

fn answer_beside(service: &Service<Odd>, relief: &dyn Relief, slot: usize, bytes: &[u8]) -> Answer {
    let mut memory = [0; 4096];
    let incoming = Incoming::whole(bytes).unwrap();
    let slot = service.in_flight.slot(slot);
    let work = service.work(&slot, relief, &incoming, &mut memory);
    let answer = work.answer;
    service.finish(work, true);
    answer
}

#[test]
fn what_is_not_understood_is_refused_and_what_is_gets_its_span() {
    let service = service(1);
    let malformed = answer(&service, 0, &request(1, 2, b"no end"));
    assert_eq!(malformed, Answer::Error(Errno::EIO), "PROTOCOL-1");
    let unserved = answer(&service, 0, &request(37, 4, &[0; 16]));
    assert_eq!(unserved, Answer::Error(Errno::ENOSYS), "PROTOCOL-1");
    let forget = answer(&service, 0, &request(2, 6, b"short"));
    assert_eq!(forget, Answer::Silent, "nobody waits");
    assert!(service.filesystem.ended.lock().unwrap().is_empty());
    assert_eq!(answer(&service, 0, &request(5, 8, b"")), Answer::Data(6));
    let missing = answer(&service, 0, &request(1, 10, b"x\0"));
    assert_eq!(missing, Answer::Error(Errno::ENOENT));
    let ended = service.filesystem.ended.lock().unwrap().clone();
    let outcome = Outcome {
        error: None,
        written_bytes: 0,
        reply_bytes: 6,
        is_delivered: true,
    };
    let refused = Outcome {
        error: Some(Errno::ENOENT),
        reply_bytes: 0,
        ..outcome
    };
    assert_eq!(
        ended,
        [(Opcode::Readlink, outcome), (Opcode::Lookup, refused)]
    );
}

#[test]
fn after_a_panic_nothing_is_served() {
    let service = service(1);
    assert_eq!(answer(&service, 0, &request(5, 2, b"")), Answer::Data(6));
    let panicked = answer(&service, 0, &request(1, 4, b"panic\0"));
    assert_eq!(panicked, Answer::Error(Errno::EIO), "PROTOCOL-5");
    assert!(service.is_broken(), "PROTOCOL-5");
    let later = answer(&service, 0, &request(5, 6, b""));
    assert_eq!(later, Answer::Error(Errno::EIO), "PROTOCOL-5");
    assert_eq!(service.filesystem.ended.lock().unwrap().len(), 2);
}

#[test]
fn a_panic_beside_a_handler_fails_its_request_only() {
    let service = service(1);
    let ended = || service.filesystem.ended.lock().unwrap().len();
    for (step, during, ended_count) in [
        ("begin", Answer::Error(Errno::EIO), 0),
        ("describe", Answer::Error(Errno::EIO), 1),
        ("end", Answer::Data(6), 1),
    ] {
        let before = ended();
        *service.filesystem.panics_in.lock().unwrap() = step;
        let panicked = answer(&service, 0, &request(5, 2, b""));
        assert_eq!(panicked, during, "PROTOCOL-5: {step}");
        assert_eq!(ended() - before, ended_count, "what began ends: {step}");
        let silent = answer(&service, 0, &request(2, 4, &[0; 8]));
        assert_eq!(silent, Answer::Silent, "PROTOCOL-5: {step}");
        assert!(!service.in_flight.interrupt(2) && !service.in_flight.interrupt(4));
        *service.filesystem.panics_in.lock().unwrap() = "";
        let later = answer(&service, 0, &request(5, 6, b""));
        assert_eq!(later, Answer::Data(6), "PROTOCOL-5: {step}");
        assert!(!service.is_broken());
    }
}

#[test]
fn waits_for_locks_leave_slots_for_others_and_can_be_interrupted() {
    let service = service(1);
    let lock = request(33, 20, &[0; 48]);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let null = std::fs::File::open("/dev/null").unwrap();
            service.in_flight.slot(0).attach(&Device::new(null.into()));
            answer(&service, 0, &lock)
        });
        while service.lock_waits.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let another = answer(&service, 1, &request(33, 22, &[0; 48]));
        assert_eq!(another, Answer::Error(Errno::ENOLCK));
        while !service.in_flight.interrupt(20) {
            std::thread::yield_now();
        }
        let interrupted = waiter.join().unwrap();
        assert_eq!(interrupted, Answer::Error(Errno::EINTR), "PROTOCOL-3");
    });
    assert!(
        !service.in_flight.interrupt(20),
        "PROTOCOL-3: it is answered"
    );
}

/// Lets only those wait that it is told, and counts them.
struct Lets {
    waits: &'static [Wait],
    reserved: AtomicUsize,
}

impl Relief for Lets {
    fn reserve(&self, wait: Wait) -> bool {
        let lets = self.waits.contains(&wait);
        self.reserved.fetch_add(usize::from(lets), Ordering::SeqCst);
        lets
    }

    fn begin(&self, _: Wait) {}

    fn end(&self, _: Wait) {
        self.reserved.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn who_must_not_wait_for_the_kernel_has_changed_nothing() {
    let service = service(1);
    let lock = wire::LkIn {
        lk: wire::FileLock {
            kind: libc::F_WRLCK as u32,
            ..wire::FileLock::default()
        },
        ..wire::LkIn::default()
    };
    let lock = wire::bytes_of(&lock);
    let (set, set_waiting) = (request(32, 2, lock), request(33, 4, lock));
    let go = |waits, request: &[u8]| {
        let lets = Lets {
            waits,
            reserved: AtomicUsize::new(0),
        };
        let answer = answer_beside(&service, &lets, 0, request);
        assert_eq!(lets.reserved.into_inner(), 0, "all of it ends");
        let done = std::mem::take(&mut *service.filesystem.done.lock().unwrap());
        (answer, done)
    };
    let whole = (Answer::Data(0), vec!["set", "waits"]);
    let refused = |error| (Answer::Error(error), vec![]);
    assert_eq!(go(&[Wait::Kernel], &set), whole);
    assert_eq!(go(&[Wait::Lock], &set), refused(Errno::EAGAIN), "RING-2");
    assert_eq!(go(&[], &set_waiting), refused(Errno::ENOLCK), "RING-2");
    assert_eq!(go(&[Wait::Lock], &set_waiting), whole, "it waits already");
}
