//! What the hardware gives: a bare program that does the same I/O and nothing else.
//!
//! A *content file* and a *log*, both written once with zeros before, so that no write grows them,
//! opened for direct I/O. A commit is one write of the content, its flush, one append to the log,
//! its flush: the two waits that a durable commit of content and names has to take.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use xtask::Outcome;

const BLOCK_BYTES: usize = 4096;
/// Largest request, bytes.
const REQUEST_BYTES: usize = 8 << 20;
/// What a commit appends to its log at least, bytes.
const COMMIT_LOG_BYTES: usize = BLOCK_BYTES;
/// What a commit appends for each object, bytes: an inode, a name, a map, an extent.
const OBJECT_LOG_BYTES: usize = 256;
const LOG_BYTES: u64 = 16 << 20;

/// The two files.
pub struct Bare {
    content: File,
    content_bytes: u64,
    log: File,
    content_at: u64,
    log_at: u64,
    buffer: Aligned,
}

impl Bare {
    /// Makes files in `directory` that hold `content_bytes`.
    pub fn create(directory: &Path, content_bytes: u64) -> Result<Bare, String> {
        let content_bytes = content_bytes.next_multiple_of(REQUEST_BYTES as u64);
        let open = |name: &str, len: u64| {
            let path = directory.join(name);
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .custom_flags(OFlags::DIRECT.bits() as i32)
                .open(&path)?;
            let zeros = Aligned::new(REQUEST_BYTES);
            for at in (0..len).step_by(REQUEST_BYTES) {
                file.write_all_at(zeros.bytes(REQUEST_BYTES), at)?;
            }
            file.sync_all()?;
            Ok::<File, std::io::Error>(file)
        };
        let files = || {
            Ok::<_, std::io::Error>((
                open("bare.content", content_bytes)?,
                open("bare.log", LOG_BYTES)?,
            ))
        };
        let (content, log) = files().map_err(|error| explain(&error))?;
        Ok(Bare {
            content,
            content_bytes,
            log,
            content_at: 0,
            log_at: 0,
            buffer: Aligned::new(REQUEST_BYTES),
        })
    }

    /// One durable commit of `count` objects of `object_bytes`.
    pub fn commit(&mut self, count: usize, object_bytes: usize) -> Outcome {
        let content_bytes = count * object_bytes.next_multiple_of(BLOCK_BYTES);
        let log_bytes = (COMMIT_LOG_BYTES + count * OBJECT_LOG_BYTES).next_multiple_of(BLOCK_BYTES);
        let mut commit = || {
            self.write_content(content_bytes)?;
            self.content.sync_data()?;
            if self.log_at + log_bytes as u64 > LOG_BYTES {
                self.log_at = 0;
            }
            self.log
                .write_all_at(self.buffer.bytes(log_bytes), self.log_at)?;
            self.log_at += log_bytes as u64;
            self.log.sync_data()
        };
        commit().map_err(|error| explain(&error))
    }

    /// Writes an object, which the next [`Bare::commit`] makes durable.
    pub fn write(&mut self, object_bytes: usize) -> Outcome {
        self.write_content(object_bytes.next_multiple_of(BLOCK_BYTES))
            .map_err(|error| explain(&error))
    }

    /// Reads `bytes` from the beginning, in requests of at most 8 MiB.
    pub fn read(&mut self, object_bytes: usize, count: usize) -> Outcome {
        let object_bytes = object_bytes.next_multiple_of(BLOCK_BYTES);
        let mut at = 0;
        for _ in 0..count {
            let mut left = object_bytes;
            if at + left as u64 > self.content_bytes {
                at = 0;
            }
            while left > 0 {
                let len = left.min(REQUEST_BYTES);
                self.content
                    .read_exact_at(self.buffer.bytes_mut(len), at)
                    .map_err(|error| explain(&error))?;
                at += len as u64;
                left -= len;
            }
        }
        Ok(())
    }

    fn write_content(&mut self, bytes: usize) -> std::io::Result<()> {
        if self.content_at + bytes as u64 > self.content_bytes {
            self.content_at = 0;
        }
        let mut left = bytes;
        while left > 0 {
            let len = left.min(REQUEST_BYTES);
            self.content
                .write_all_at(self.buffer.bytes(len), self.content_at)?;
            self.content_at += len as u64;
            left -= len;
        }
        Ok(())
    }
}

fn explain(error: &std::io::Error) -> String {
    format!("bare files: {error}")
}

/// Memory at a multiple of the block size, as direct I/O wants it.
struct Aligned {
    memory: Vec<u8>,
    skip: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        let memory = vec![0; len + BLOCK_BYTES];
        let skip = memory.as_ptr().align_offset(BLOCK_BYTES);
        Aligned { memory, skip }
    }

    fn bytes(&self, len: usize) -> &[u8] {
        &self.memory[self.skip..self.skip + len]
    }

    fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        &mut self.memory[self.skip..self.skip + len]
    }
}
