//! Where the commits of a log end, and whether that is still so.

use super::{FRAME_HEAD_BYTES, Frame, Frames, HEAD_BYTES, Head};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The end of a log's last whole commit. The next commit changes what is behind it, or the log's
/// header: a frame is told from what lay there before by its salts, and a header by both of its
/// own.
#[derive(Debug, PartialEq, Eq)]
pub struct LogEnd {
    head: [u8; HEAD_BYTES],
    /// Bytes up to there.
    offset: u64,
    /// The heads of the frames behind that have the log's salts, and of one more: a commit that has
    /// not ended, and may go on.
    tail: Vec<[u8; FRAME_HEAD_BYTES]>,
    /// Of one of them not all was there: whether it ends a commit does not show in its head.
    is_torn: bool,
}

impl LogEnd {
    /// The header of a log; `None`: it has none, so no commit.
    pub fn head(log: &File) -> io::Result<Option<[u8; HEAD_BYTES]>> {
        let mut head = [0; HEAD_BYTES];
        Ok((read_up_to(log, &mut head, 0)? == HEAD_BYTES).then_some(head))
    }

    /// Finds it in a log that nobody writes; `None`: it has no header. Cost: the log is read once.
    pub fn find(log: &File) -> io::Result<Option<LogEnd>> {
        let Some(raw) = LogEnd::head(log)? else {
            return Ok(None);
        };
        let mut offset = HEAD_BYTES as u64;
        let mut behind = 0;
        if let Some(head) = Head::decode(&raw) {
            let (mut frames, mut sum, mut at) = (Frames::new(log, &head)?, head.sum, offset);
            while let Some(frame) = frames.next()?
                && frame.fits(&head, sum)
            {
                sum = frame.said();
                at += head.frame_bytes() as u64;
                behind += 1;
                if frame.is_commit() {
                    (offset, behind) = (at, 0);
                }
            }
        }
        let tail = tail(log, &raw, offset)?;
        Ok(Some(LogEnd {
            head: raw,
            offset,
            is_torn: behind + 1 < tail.len(),
            tail,
        }))
    }

    /// Bytes of the log up to there.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether `log`, which others may write, has no commit that the one has not in which this end
    /// was found. 1 µs, and as much for each frame of a commit that has not ended; where one of
    /// these was half there, the log is read once.
    pub fn is_of(&self, log: &File) -> io::Result<bool> {
        if LogEnd::head(log)? != Some(self.head) || tail(log, &self.head, self.offset)? != self.tail
        {
            return Ok(false);
        }
        Ok(!self.is_torn || LogEnd::find(log)?.is_some_and(|now| now.offset == self.offset))
    }
}

fn tail(
    log: &File,
    raw: &[u8; HEAD_BYTES],
    mut offset: u64,
) -> io::Result<Vec<[u8; FRAME_HEAD_BYTES]>> {
    let mut tail = Vec::new();
    let Some(head) = Head::decode(raw) else {
        return Ok(tail); // What comes next is a header.
    };
    loop {
        let mut bytes = [0; FRAME_HEAD_BYTES];
        read_up_to(log, &mut bytes, offset)?;
        tail.push(bytes);
        if !(Frame { bytes: &bytes }).has_salts(&head) {
            return Ok(tail);
        }
        offset += head.frame_bytes() as u64;
    }
}

/// How much there was; the rest stays as it is.
fn read_up_to(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
