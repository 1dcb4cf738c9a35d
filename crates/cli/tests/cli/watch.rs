//! Watching a mount: `--metrics` and `larder trace`, on a real one.

use crate::constraints::Sql;
use crate::support::{Killed, Place};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A database that is mounted in the background, and unmounted in the end.
struct Mounted(Place);

impl Mounted {
    fn new(flags: &[&str]) -> Mounted {
        let place = Place::new();
        place.ok(&[
            &["mount", "--create", "--daemon", "--log", "info"],
            flags,
            &["a.larder", "mnt"],
        ]
        .concat());
        Mounted(place)
    }

    /// Where metrics are answered: the log has it.
    fn metrics_address(&self) -> String {
        let log = fs::read_to_string(self.0.path("a.larder/mount.log")).unwrap();
        let at = log.split("http://").nth(1).unwrap();
        at.split("/metrics").next().unwrap().to_owned()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let done = self.0.run(&["umount", "--lazy", "mnt"]);
        assert!(std::thread::panicking() || done.code == Some(0), "{done:?}");
    }
}

fn get(address: &str, path: &str) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    write!(client, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

fn sample(text: &str, series: &str) -> f64 {
    let line = (text.lines())
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
        .unwrap_or_else(|| panic!("no {series} in\n{text}"));
    line.parse().unwrap()
}

#[test]
fn prometheus_reads_what_the_mount_did() {
    let mount = Mounted::new(&["--metrics", "127.0.0.1:0"]);
    let address = mount.metrics_address();
    let path = mount.0.path("mnt/f");
    fs::write(&path, vec![7; 100_000]).unwrap();
    fs::File::open(&path).unwrap().sync_all().unwrap();
    assert!(fs::metadata(mount.0.path("mnt/none")).is_err());
    let held = fs::File::open(&path).unwrap();

    // A thread counts a request when it has answered it.
    let fsyncs = "larder_operation_seconds_count{operation=\"fsync\"}";
    let patience = Instant::now();
    while !get(&address, "/metrics").contains(fsyncs) && patience.elapsed() < Duration::from_secs(5)
    {
        std::thread::sleep(Duration::from_millis(5));
    }
    let answer = get(&address, "/metrics");
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(
        head.contains(&format!("Content-Length: {}", text.len())),
        "{head}"
    );
    for (series, at_least) in [
        ("larder_written_bytes_total", 100_000.0),
        ("larder_operation_seconds_count{operation=\"create\"}", 1.0),
        ("larder_operation_seconds_count{operation=\"write\"}", 1.0),
        (fsyncs, 1.0),
        (
            "larder_errors_total{operation=\"lookup\",errno=\"ENOENT\"}",
            1.0,
        ),
        ("larder_open_handles", 1.0),
        ("larder_groups_total", 1.0),
        ("larder_commits_total", 1.0),
        ("larder_inodes", 2.0),
        ("larder_live_bytes", 100_000.0),
        ("larder_fragments", 1.0),
        ("larder_cached_inodes", 1.0),
        ("larder_wal_bytes", 1.0),
        ("larder_free_bytes", 1.0),
    ] {
        let value = sample(text, series);
        assert!(value >= at_least, "{series} is {value}");
    }
    assert_eq!(sample(text, "larder_requests_in_flight"), 0.0, "METRIC-1");
    drop(held);
    assert!(get(&address, "/").starts_with("HTTP/1.1 404"));
}

/// A process of its own that makes files, waits for a line, and does with them what their names
/// say. (In this one the descriptors are also those of whatever other tests start: a close by
/// `exec` would be told, and nobody hears it.)
const HOLDER: &str = "
import os, subprocess, sys
def errno(call, file):
    try: call(file)
    except OSError as error: return error.errno
    return 0
calls = {
    'close': os.close, 'fsync': os.fsync, 'copy': lambda file: os.close(os.dup(file)),
    'spawn': lambda file: subprocess.run(['true'], pass_fds=[file], check=True),
}
names = ['close', 'fsync', 'fsync close', 'spawn close', 'copy close']
files = [os.open(os.path.join(sys.argv[1], name), os.O_WRONLY | os.O_CREAT) for name in names]
for file in files: os.write(file, b'content')
print('made', flush=True)
sys.stdin.readline()
for name, file in zip(names, files):
    print(*(errno(calls[call], file) for call in name.split()), flush=True)
";

#[test]
fn a_refusal_after_the_answer_is_told_by_fsync_and_close_and_counted() {
    let mount = Mounted::new(&["--metrics", "127.0.0.1:0"]);
    let address = mount.metrics_address();
    let file = |name: &str| mount.0.path("mnt").join(name);
    let refused = || {
        sample(
            &get(&address, "/metrics"),
            "larder_refused_operations_total",
        )
    };
    let sql = || Sql::open(&mount.0.path("a.larder/catalog.db"));
    // With an index of the user's the kernel asks the server at a close.
    let mut shell = sql();
    shell.run("CREATE INDEX sizes ON main (size);");
    shell.end();
    fs::write(file("before"), "before").unwrap();
    let before = fs::File::open(file("before")).unwrap();
    before.sync_all().unwrap();
    let mut shell = sql();
    // The rule is not to be seen until its transaction commits, and the mount commits after it.
    shell.run(
        "BEGIN IMMEDIATE; CREATE TRIGGER t BEFORE INSERT ON main \
         BEGIN SELECT RAISE(ABORT, 'no more files'); END;",
    );
    let mut holder = Killed::spawn(
        Command::new("/usr/bin/python3")
            .args(["-c", HOLDER])
            .arg(file(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    );
    let mut answers = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert_eq!(answers.next().unwrap().unwrap(), "made");
    fs::write(file("before"), "after").unwrap();
    assert_eq!(refused(), 0.0);
    shell.run("COMMIT;");
    shell.end();
    // Others commit as if it had not happened.
    before.sync_all().unwrap();
    assert_eq!(refused(), 5.0);
    writeln!(holder.stdin.as_mut().unwrap()).unwrap();
    for errors in ["5", "5", "5 5", "0 5", "5 5"] {
        assert_eq!(answers.next().unwrap().unwrap(), errors, "CONSTRAINT-2");
    }
    assert_eq!(fs::read(file("before")).unwrap(), b"after");
    // Once counted, however often it is told.
    drop(holder);
    assert_eq!(refused(), 5.0);
}

#[test]
fn a_bad_address_is_told_before_anything_is_mounted() {
    let place = Place::with_database();
    fs::create_dir(place.path("mnt")).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for address in ["nonsense", "127.0.0.1", &taken] {
        for daemon in [&[][..], &["--daemon"]] {
            let arguments = [
                &["mount", "--metrics", address],
                daemon,
                &["a.larder", "mnt"],
            ];
            place.fails(1, &arguments.concat(), address);
        }
    }
    assert!(
        larder_fuse::find_mount(&place.path("mnt"))
            .unwrap()
            .is_none()
    );
}

/// `larder trace`, listening.
struct Tracing {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
}

fn trace(place: &Place, flags: &[&str]) -> Tracing {
    let mut command = place.command(&[&["trace", "a.larder"], flags].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(
        line.contains("tracing '") && line.contains("/mnt'"),
        "{line}"
    );
    Tracing { child, stderr }
}

impl Tracing {
    /// What it printed until it ended, after a signal if `signal`.
    fn end(mut self, signal: bool) -> (String, String) {
        if signal {
            let pid = rustix::process::Pid::from_child(&self.child);
            rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        }
        let (mut out, mut said) = (String::new(), String::new());
        let mut stdout = self.child.stdout.take().unwrap();
        stdout.read_to_string(&mut out).unwrap();
        self.stderr.read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success(), "{said}");
        (out, said)
    }
}

#[test]
fn operations_are_traced_with_path_size_error_and_caller() {
    let mount = Mounted::new(&[]);
    let place = &mount.0;
    fs::create_dir(place.path("mnt/dir")).unwrap();
    let tracing = trace(place, &[]);
    fs::write(place.path("mnt/dir/f"), vec![7; 5000]).unwrap();
    fs::rename(place.path("mnt/dir/f"), place.path("mnt/dir/g")).unwrap();
    assert!(fs::remove_dir(place.path("mnt/none")).is_err());
    std::thread::sleep(Duration::from_millis(200));
    let (out, _) = tracing.end(true);
    let line = |operation: &str| -> &str {
        let find = |line: &&str| line.contains(&format!(" µs  {operation} "));
        out.lines()
            .find(find)
            .unwrap_or_else(|| panic!("no {operation}: {out}"))
    };
    assert!(line("create").contains("/dir/f  "), "{out}");
    assert!(line("write").contains(" /dir/f  5000 at 0  "), "{out}");
    assert!(
        line("write").ends_with(&format!("({})", line_pid(line("create")))),
        "{out}"
    );
    assert!(line("rename").contains(" /dir/f -> /dir/g  "), "{out}");
    assert!(line("lookup").contains("ENOENT"), "{out}");
    let left = fs::read_dir(place.path("a.larder/trace")).unwrap().count();
    assert_eq!(left, 0, "the pipe goes with its tracer");
}

fn line_pid(line: &str) -> &str {
    line.rsplit('(').next().unwrap().trim_end_matches(')')
}

#[test]
fn traces_are_filtered_counted_and_summed_up() {
    let mount = Mounted::new(&[]);
    let place = &mount.0;
    let json = trace(place, &["--json", "--op", "create,mkdir", "--count", "3"]);
    let slow = trace(place, &["--slower-than", "1h"]);
    let summary = trace(place, &["--summary", "--json"]);
    for number in 0..3 {
        fs::write(place.path(&format!("mnt/{number}")), "x").unwrap();
        fs::metadata(place.path(&format!("mnt/{number}"))).unwrap();
    }
    let (out, _) = json.end(false);
    let list: serde_json::Value = serde_json::from_str(&out).expect("CLI-5");
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), 3);
    // Two threads that answered one after the other may tell of it the other way round.
    let mut paths: Vec<&str> = (list.iter().map(|event| event["path"].as_str().unwrap())).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["/0", "/1", "/2"]);
    for event in list {
        assert_eq!(event["operation"], "create");
        assert_eq!(event["error"], serde_json::Value::Null);
        assert!(event["duration_ns"].as_u64().unwrap() > 0);
    }
    let (out, _) = slow.end(true);
    assert_eq!(out, "");
    std::thread::sleep(Duration::from_millis(200));
    let (out, _) = summary.end(true);
    let list: serde_json::Value = serde_json::from_str(&out).expect("CLI-5");
    let creates = (list.as_array().unwrap().iter())
        .find(|line| line["operation"] == "create")
        .unwrap();
    assert_eq!(creates["count"], 3);
    let of = |key: &str| creates[key].as_u64().unwrap();
    assert!(of("latency_ns_p50") <= of("latency_ns_p99"));
    assert!(of("latency_ns_p99") <= of("latency_ns_max"));
}

#[test]
fn a_stopped_tracer_does_not_stop_the_mount() {
    let mount = Mounted::new(&[]);
    let place = &mount.0;
    let tracing = trace(place, &["--summary", "--json"]);
    let pid = rustix::process::Pid::from_child(&tracing.child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let began = Instant::now();
    for number in 0..8000 {
        fs::write(place.path(&format!("mnt/{:0100}", number % 500)), "x").unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(60), "TRACE-1");
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    // The mount tells what was lost as soon as there is room.
    std::thread::sleep(Duration::from_millis(700));
    let (out, said) = tracing.end(true);
    let lost: u64 = (said.lines())
        .filter_map(|line| {
            line.split_once(" events of process")?
                .0
                .split(' ')
                .next_back()
        })
        .map(|count| count.parse::<u64>().unwrap())
        .sum();
    let list: serde_json::Value = serde_json::from_str(&out).expect("CLI-5");
    let heard: u64 = (list.as_array().unwrap().iter())
        .map(|line| line["count"].as_u64().unwrap())
        .sum();
    assert!(lost > 0, "CLI-23: {said}");
    // At least open or create, write and release of each file.
    assert!(
        heard > 1000 && heard + lost >= 3 * 8000,
        "TRACE-1: {heard} and {lost}"
    );
}

#[test]
fn tracing_needs_a_mount() {
    let place = Place::with_database();
    place.fails(1, &["trace", "a.larder"], "no mount of 'a.larder' answers");
    place.fails(1, &["trace", "none.larder"], "is no database");
    place.fails(
        2,
        &["trace", "a.larder", "--op", "reed"],
        "no operation 'reed'",
    );
}
