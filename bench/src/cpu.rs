//! What work costs the processors, on both sides of a mount: the programs that use it, and the
//! process that serves it. What the kernel does in threads of its own is in neither.

use std::collections::BTreeMap;
use std::fs;

/// CPU time that was used up to some moment, or between two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cpu {
    /// By this process and by those that it started and waited for.
    pub client_seconds: f64,
    /// By the serving process and those below it.
    pub server_seconds: f64,
}

impl Cpu {
    /// Up to now, in ticks of the kernel: 10 ms.
    pub fn now(server: Option<u32>) -> Result<Cpu, String> {
        let server_ticks = match server {
            Some(pid) => ticks_of_tree(pid)?,
            None => 0,
        };
        let client_ticks = Process::read(std::process::id())?.ticks;
        let second = rustix::param::clock_ticks_per_second() as f64;
        Ok(Cpu {
            client_seconds: client_ticks as f64 / second,
            server_seconds: server_ticks as f64 / second,
        })
    }

    /// What was used after `before`.
    pub fn since(self, before: Cpu) -> Cpu {
        Cpu {
            client_seconds: self.client_seconds - before.client_seconds,
            server_seconds: self.server_seconds - before.server_seconds,
        }
    }
}

/// CPU seconds of a process and those below it, up to now.
pub fn seconds_of_tree(pid: u32) -> Result<f64, String> {
    Ok(ticks_of_tree(pid)? as f64 / rustix::param::clock_ticks_per_second() as f64)
}

struct Process {
    parent: u32,
    /// Its own, and of the children it waited for.
    ticks: u64,
}

impl Process {
    fn read(pid: u32) -> Result<Process, String> {
        let file = format!("/proc/{pid}/stat");
        let text = fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
        Process::parse(&text).ok_or(format!("{file} has too few fields"))
    }

    /// The name of the program is in brackets, and may have blanks and brackets in it.
    fn parse(text: &str) -> Option<Process> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Process {
            parent: u32::try_from(number(1)?).ok()?,
            ticks: number(11)? + number(12)? + number(13)? + number(14)?,
        })
    }
}

fn ticks_of_tree(root: u32) -> Result<u64, String> {
    let entries = fs::read_dir("/proc").map_err(|error| format!("/proc: {error}"))?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    // One that ends meanwhile is counted by its parent the next time.
    let processes: BTreeMap<u32, Process> = pids
        .filter_map(|pid| Some((pid, Process::read(pid).ok()?)))
        .collect();
    let is_below = |pid: u32| {
        let mut above = pid;
        while above != root {
            match processes.get(&above) {
                Some(process) if process.parent != 0 => above = process.parent,
                _ => return false,
            }
        }
        true
    };
    if !processes.contains_key(&root) {
        return Err(format!("process {root}, which serves, is gone"));
    }
    let ticks = |(pid, process): (&u32, &Process)| if is_below(*pid) { process.ticks } else { 0 };
    Ok(processes.iter().map(ticks).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let text = "7 (a) b (c)) S 3 7 7 0 -1 4194560 1 2 3 4 100 20 3 4 20 0 1 0 5";
        let process = Process::parse(text).unwrap();
        assert_eq!((process.parent, process.ticks), (3, 127));
        assert!(Process::parse("7 (a) S 3").is_none());
    }

    #[test]
    fn work_of_this_process_is_seen_on_both_sides() {
        let server = Some(std::process::id());
        let before = Cpu::now(server).unwrap();
        let started = std::time::Instant::now();
        while Cpu::now(server).unwrap().since(before).client_seconds < 0.05 {
            assert!(started.elapsed().as_secs() < 60);
        }
        assert!(Cpu::now(server).unwrap().since(before).server_seconds >= 0.05);
    }
}
