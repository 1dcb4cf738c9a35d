//! Files of one size, written and read by threads at once, each in a directory of its own.
//!
//! Every call moves [`CALL_BYTES`] at most. Content is incompressible, and whatever is read is
//! verified.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::thread;

use super::content;
use super::sides::CALL_BYTES;
use xtask::Outcome;

/// How a file is left after it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Closed.
    Close,
    /// Durable, then closed.
    Sync,
}

/// What is written and read.
pub struct Load {
    file_bytes: usize,
    files_per_thread: usize,
    /// What each thread writes from and reads into.
    buffers: Vec<Vec<u8>>,
}

impl Load {
    /// About `files` files of `file_bytes` bytes by `threads` threads, which do the same number
    /// each.
    pub fn new(file_bytes: usize, files: usize, threads: usize) -> Load {
        // One byte more than a small file, so that its end is seen in one call.
        let buffer = content::noise(7, CALL_BYTES.min(file_bytes + 1));
        Load {
            file_bytes,
            files_per_thread: files.div_ceil(threads),
            buffers: vec![buffer; threads],
        }
    }

    /// All files.
    pub fn files(&self) -> u64 {
        (self.files_per_thread * self.buffers.len()) as u64
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.files() * self.file_bytes as u64
    }

    /// Makes the directories, below `root`, which is not there yet.
    pub fn make_directories(&self, root: &Path) -> Outcome {
        fs::create_dir(root).map_err(|error| explain(root, &error))?;
        for thread in 0..self.buffers.len() {
            let path = root.join(thread.to_string());
            fs::create_dir(&path).map_err(|error| explain(&path, &error))?;
        }
        Ok(())
    }

    /// Creates and writes all files.
    pub fn write(&mut self, root: &Path, ending: Ending) -> Outcome {
        let file_bytes = self.file_bytes;
        self.each(root, |path, id, buffer| {
            let mut file = File::create(path)?;
            let mut left = file_bytes;
            for part in 0.. {
                let len = left.min(CALL_BYTES);
                content::stamp(&mut buffer[..len], id, part);
                file.write_all(&buffer[..len])?;
                left -= len;
                if left == 0 {
                    break;
                }
            }
            match ending {
                Ending::Close => Ok(()),
                Ending::Sync => file.sync_all(),
            }
        })
    }

    /// Opens, reads and closes all files, in the order in which they were written.
    pub fn read(&mut self, root: &Path) -> Outcome {
        let file_bytes = self.file_bytes;
        self.each(root, |path, id, buffer| {
            let mut file = File::open(path)?;
            let mut left = file_bytes;
            for part in 0.. {
                let len = file.read(buffer)?;
                content::verify(&buffer[..len], id, part, left.min(buffer.len()))
                    .map_err(std::io::Error::other)?;
                left -= len;
                if len < buffer.len() {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Does `work` with every file: its path, its number, the thread's buffer.
    fn each(
        &mut self,
        root: &Path,
        work: impl Fn(&Path, u64, &mut [u8]) -> std::io::Result<()> + Sync,
    ) -> Outcome {
        let count = self.files_per_thread;
        let all = |thread: usize, buffer: &mut [u8]| {
            let directory = root.join(thread.to_string());
            for index in 0..count {
                let path: PathBuf = directory.join(index.to_string());
                let id = (thread * count + index) as u64;
                work(&path, id, buffer).map_err(|error| explain(&path, &error))?;
            }
            Ok(())
        };
        let all = &all;
        thread::scope(|scope| {
            let buffers = self.buffers.iter_mut().enumerate();
            let threads: Vec<_> = buffers
                .map(|(thread, buffer)| scope.spawn(move || all(thread, buffer)))
                .collect();
            threads.into_iter().try_for_each(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })
    }
}

fn explain(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_anything_else_is_found() {
        let directory = tempfile::tempdir().unwrap();
        for bytes in [10_000, CALL_BYTES, 2 * CALL_BYTES + 500] {
            let root = directory.path().join(bytes.to_string());
            let mut load = Load::new(bytes, 5, 2);
            assert_eq!((load.files(), load.bytes()), (6, 6 * bytes as u64));
            load.make_directories(&root).unwrap();
            load.write(&root, Ending::Close).unwrap();
            load.read(&root).unwrap();
            fs::copy(root.join("1/0"), root.join("0/2")).unwrap();
            assert!(load.read(&root).is_err());
            File::create(root.join("0/2"))
                .and_then(|file| file.set_len(3))
                .unwrap();
            assert!(load.read(&root).is_err());
        }
    }
}
