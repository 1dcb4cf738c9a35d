//! Copying trees from one side to another.
//!
//! # Words
//! *Carried over*: attributes that the copy has from its source. *Archive*: everything is carried
//! over, hard links within the copy among them.
//!
//! # Invariants
//! * `CLI-10` A file that a copy creates is whole or gone: when its content cannot be copied, it is
//!   removed again. A file that exists is overwritten in place: it keeps its row and other names.
//! * `CLI-11` A copy never reads a directory that it has made itself.
//! * `CLI-12` What is recorded as copied was copied as it was found.

use crate::address::join;
use crate::error::{Failure, Result, warn};
use crate::output::kind_words;
use crate::side::{Carry, Content, Found, REQUEST_BYTES, Side, is_fatal};
use indicatif::{ProgressBar, ProgressStyle};
use larder::{FileKind, NewNode};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// How a copy is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopyMode {
    /// Directories are copied with all they hold; symbolic links stay links.
    pub(crate) is_recursive: bool,
    /// Mode, times, owner (if root), hard links and extended attributes are carried over.
    pub(crate) is_archive: bool,
    /// An attribute that cannot be carried over is a failure, not a warning.
    pub(crate) is_strict: bool,
    /// Bits that new files must not have, unless in an archive.
    pub(crate) umask: u32,
    /// Who runs this may give files away.
    pub(crate) is_root: bool,
}

/// What was copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CopyCount {
    pub(crate) files: u64,
    pub(crate) directories: u64,
    /// Symbolic links, pipes, sockets, devices, and further names of files.
    pub(crate) others: u64,
    pub(crate) bytes: u64,
}

/// A copy under way, from one side to another.
pub(crate) struct Copy<'a> {
    from: &'a dyn Side,
    to: &'a dyn Side,
    /// Identities of one side can be compared with those of the other.
    is_same_side: bool,
    mode: CopyMode,
    progress: &'a Progress,
    /// First copies of files that have more than one name.
    linked: HashMap<(u64, u64), Vec<u8>>,
    made: HashSet<(u64, u64)>,
    warned: HashSet<Vec<u8>>,
    buffer: Vec<u8>,
    is_whole: bool,
    copied: Vec<(Vec<u8>, Found)>,
    count: CopyCount,
}

impl<'a> Copy<'a> {
    /// A copy that has not begun. `is_same_side`: `from` and `to` are one database.
    pub(crate) fn new(
        from: &'a dyn Side,
        to: &'a dyn Side,
        is_same_side: bool,
        mode: CopyMode,
        progress: &'a Progress,
    ) -> Copy<'a> {
        Copy {
            from,
            to,
            is_same_side,
            mode,
            progress,
            linked: HashMap::new(),
            made: HashSet::new(),
            warned: HashSet::new(),
            buffer: Vec::new(),
            is_whole: true,
            copied: Vec::new(),
            count: CopyCount::default(),
        }
    }

    /// Copies what is at `source` to exactly `target`. Failures inside a tree are told and passed
    /// over, then [`Failure::Told`] is the result; what makes going on pointless ends the copy.
    pub(crate) fn run(&mut self, source: &[u8], target: &[u8]) -> Result<()> {
        let follow = !self.mode.is_recursive;
        let found = self
            .from
            .find(source, follow)?
            .ok_or_else(|| self.missing(source))?;
        self.is_whole = true;
        self.node(source, &found, target, follow)?;
        if self.is_whole {
            Ok(())
        } else {
            Err(Failure::Told(1))
        }
    }

    /// What was copied, source paths and what was found there, the contents of a directory before
    /// the directory (`CLI-12`).
    pub(crate) fn copied(&self) -> &[(Vec<u8>, Found)] {
        &self.copied
    }

    /// How much was copied.
    pub(crate) fn count(&self) -> CopyCount {
        self.count
    }

    fn node(&mut self, source: &[u8], found: &Found, target: &[u8], follow: bool) -> Result<()> {
        let existing = self.to.find(target, follow)?;
        if self.is_same_side && existing.is_some_and(|existing| existing.identity == found.identity)
        {
            return Err(Failure::Other(format!(
                "'{}' and '{}' are the same file; choose another destination",
                self.from.show(source),
                self.to.show(target)
            )));
        }
        match found.kind {
            FileKind::Directory => self.directory(source, found, target, existing)?,
            FileKind::File => self.file(source, found, target, existing, follow)?,
            _ => self.other(source, found, target, existing)?,
        }
        self.copied.push((source.to_vec(), *found));
        Ok(())
    }

    fn directory(
        &mut self,
        source: &[u8],
        found: &Found,
        target: &[u8],
        existing: Option<Found>,
    ) -> Result<()> {
        if !self.mode.is_recursive {
            return Err(Failure::Other(format!(
                "'{}' is a directory; copy it with 'larder cp -r'",
                self.from.show(source)
            )));
        }
        if self.is_same_side && self.made.contains(&found.identity) {
            return Err(Failure::Other(format!(
                "'{}' is part of the copy itself; choose a destination outside of what is copied",
                self.from.show(source)
            )));
        }
        // Listed before the target is made, which may lie in here (CLI-11).
        let names = self.from.names(source)?;
        let wanted = if self.mode.is_archive {
            found.mode
        } else {
            found.mode & 0o777 & !self.mode.umask
        };
        match existing {
            None => {
                self.to
                    .create_node(target, NewNode::Directory, wanted & 0o777 | 0o700)?;
                if let Some(made) = self.to.find(target, false)? {
                    self.made.insert(made.identity);
                }
            }
            Some(existing) if existing.kind == FileKind::Directory => {}
            Some(_) => {
                return Err(Failure::Other(format!(
                    "'{}' is not a directory; remove it or choose another destination",
                    self.to.show(target)
                )));
            }
        }
        for name in names {
            self.child(&join(source, &name), &join(target, &name))?;
        }
        // Last: filling the directory changed its times.
        if self.mode.is_archive {
            self.carry_over(source, found, target)?;
        } else if existing.is_none() && wanted & 0o700 != 0o700 {
            self.to.set_attr(
                target,
                &Carry {
                    mode: Some(wanted),
                    ..Carry::default()
                },
            )?;
        }
        self.count.directories += 1;
        Ok(())
    }

    fn child(&mut self, source: &[u8], target: &[u8]) -> Result<()> {
        let copied = match self.from.find(source, false) {
            Ok(Some(found)) => self.node(source, &found, target, false),
            // Removed since its directory was listed.
            Ok(None) => Ok(()),
            Err(failure) => Err(failure),
        };
        match copied {
            Err(failure) if !is_fatal(&failure) => {
                self.progress.suspend(|| failure.tell());
                self.is_whole = false;
                Ok(())
            }
            result => result,
        }
    }

    fn file(
        &mut self,
        source: &[u8],
        found: &Found,
        target: &[u8],
        existing: Option<Found>,
        follow: bool,
    ) -> Result<()> {
        let is_linked = self.mode.is_archive && found.nlink > 1;
        if is_linked && let Some(first) = self.linked.get(&found.identity) {
            let first = first.clone();
            self.make_room(target, existing)?;
            self.to.link(&first, target)?;
            self.count.others += 1;
            return Ok(());
        }
        let content = self.from.open(source, follow)?;
        let is_regular = existing.is_some_and(|existing| existing.kind == FileKind::File);
        let copy = if is_regular {
            self.to.overwrite(target)?
        } else {
            self.make_room(target, existing)?;
            self.to
                .create_file(target, found.mode & 0o777 & !self.mode.umask)?
        };
        if let Err(failure) = self.content(&*content, found.size_bytes, &*copy) {
            if !is_regular && let Err(left) = self.to.unlink(target) {
                left.tell();
            }
            return Err(failure);
        }
        drop(copy);
        if self.mode.is_archive {
            self.carry_over(source, found, target)?;
        }
        if is_linked {
            self.linked.insert(found.identity, target.to_vec());
        }
        self.count.files += 1;
        Ok(())
    }

    /// Copies the data of a file and leaves its holes out.
    fn content(&mut self, source: &dyn Content, size_bytes: u64, copy: &dyn Content) -> Result<()> {
        let mut next = source.next_data(0)?;
        if size_bytes > 0 && next == Some((0, size_bytes)) {
            copy.expect_len(size_bytes)?;
        }
        self.buffer.resize(REQUEST_BYTES, 0);
        let mut end_of_copy = 0;
        while let Some((begin, end)) = next {
            let mut offset = begin;
            while offset < end {
                let want = usize::try_from(end - offset)
                    .unwrap_or(usize::MAX)
                    .min(REQUEST_BYTES);
                let count = source.read_at(offset, &mut self.buffer[..want])?;
                if count == 0 {
                    break;
                }
                copy.write_at(offset, &self.buffer[..count])?;
                offset += count as u64;
                self.count.bytes += count as u64;
                self.progress.advance(count as u64);
            }
            end_of_copy = offset;
            if offset < end {
                // Cut by somebody else while it was read: what is left is all there is.
                break;
            }
            next = source.next_data(end)?;
        }
        if end_of_copy < size_bytes && next.is_none() {
            copy.set_len(size_bytes)?;
        }
        Ok(())
    }

    fn other(
        &mut self,
        source: &[u8],
        found: &Found,
        target: &[u8],
        existing: Option<Found>,
    ) -> Result<()> {
        if !self.mode.is_recursive {
            return Err(Failure::Other(format!(
                "'{}' is a {}, not a regular file; copy it with 'larder cp -a'",
                self.from.show(source),
                kind_words(found.kind)
            )));
        }
        let link_target;
        let new = match found.kind {
            FileKind::Symlink => {
                link_target = self.from.read_link(source)?;
                NewNode::Symlink(&link_target)
            }
            FileKind::Fifo => NewNode::Fifo,
            FileKind::Socket => NewNode::Socket,
            FileKind::CharDevice => NewNode::CharDevice(found.rdev),
            FileKind::BlockDevice => NewNode::BlockDevice(found.rdev),
            FileKind::File | FileKind::Directory => {
                unreachable!("these have functions of their own")
            }
        };
        self.make_room(target, existing)?;
        let mode = if found.kind == FileKind::Symlink {
            0o777
        } else {
            found.mode & 0o777 & !self.mode.umask
        };
        self.to.create_node(target, new, mode)?;
        if self.mode.is_archive {
            self.carry_over(source, found, target)?;
        }
        self.count.others += 1;
        Ok(())
    }

    /// Removes what has the name of something new.
    fn make_room(&self, target: &[u8], existing: Option<Found>) -> Result<()> {
        match existing {
            None => Ok(()),
            Some(existing) if existing.kind == FileKind::Directory => Err(Failure::Other(format!(
                "'{}' is a directory; remove it or choose another destination",
                self.to.show(target)
            ))),
            Some(_) => self.to.unlink(target),
        }
    }

    /// Gives the copy the attributes of its source: owner and mode, extended attributes, times; in
    /// this order, because each may undo the later ones.
    fn carry_over(&mut self, source: &[u8], found: &Found, target: &[u8]) -> Result<()> {
        let owner = self.mode.is_root.then_some((found.uid, found.gid));
        self.to.set_attr(
            target,
            &Carry {
                mode: Some(found.mode),
                owner,
                times_ns: None,
            },
        )?;
        for (name, value) in self.from.xattrs(source)? {
            match self.to.set_xattr(target, &name, &value) {
                Err(failure) if !self.mode.is_strict && !is_fatal(&failure) => {
                    self.warn_attribute(&name, &failure);
                }
                result => result?,
            }
        }
        let times_ns = Some((found.atime_ns, found.mtime_ns));
        self.to.set_attr(
            target,
            &Carry {
                times_ns,
                ..Carry::default()
            },
        )
    }

    /// Once per attribute: a filesystem that refuses it refuses it for every file.
    fn warn_attribute(&mut self, name: &[u8], failure: &Failure) {
        if self.warned.insert(name.to_vec())
            && let Some(line) = failure.line()
        {
            let text = format!("warning: {line}; it is not copied, here and for other files");
            self.progress.suspend(|| warn(&text));
        }
    }

    fn missing(&self, source: &[u8]) -> Failure {
        Failure::Other(format!(
            "there is no '{}'; check the path",
            self.from.show(source)
        ))
    }
}

/// A line on stderr that shows how a copy goes; nothing when that is no terminal.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// `size_bytes` is what will be copied, if it is known.
    pub(crate) fn new(size_bytes: Option<u64>) -> Progress {
        let (bar, template) = match size_bytes {
            Some(size_bytes) => (
                ProgressBar::new(size_bytes),
                "{bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
            ),
            None => (
                ProgressBar::new_spinner(),
                "{spinner} {bytes} {binary_bytes_per_sec}",
            ),
        };
        let Ok(style) = ProgressStyle::with_template(template) else {
            unreachable!("the templates are constant and correct")
        };
        let bar = bar.with_style(style);
        // A copy that is over at once shows nothing.
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress(bar)
    }

    /// So many bytes more are done.
    pub(crate) fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    fn suspend(&self, tell: impl FnOnce()) {
        self.0.suspend(tell);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
