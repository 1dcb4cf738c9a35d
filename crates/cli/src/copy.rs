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
//!
//! That it never leaves the two trees is `CLI-40` (side.rs).
//!
//! A stack instead of recursion, because trees may be deep: a directory that is being copied is a
//! [`Level`] with two descriptors.

use crate::error::{Failure, Result, warn};
use crate::output::kind_words;
use crate::progress::Progress;
use crate::side::{Carry, Content, Folder, Found, Inode, REQUEST_BYTES, Spot, is_fatal, replaced};
use larder::{FileKind, NewNode};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

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

/// Directories below each other in one copy. Each holds two descriptors.
const DEPTH_MAX: usize = 4096;

/// What has been copied, and where it lies below the start; of the start itself nothing.
pub(crate) type Copied = (Vec<Vec<u8>>, Found);

/// A copy under way, from one side to another.
pub(crate) struct Copy<'a> {
    /// Identities of one side can be compared with those of the other.
    is_same_side: bool,
    mode: CopyMode,
    progress: &'a Progress,
    /// First copies of files that have more than one name: where they lie below the target, and
    /// what they are.
    linked: HashMap<(u64, u64), Copied>,
    made: HashSet<(u64, u64)>,
    warned: HashSet<Vec<u8>>,
    buffer: Vec<u8>,
    is_whole: bool,
    /// `None`: nobody wants to know.
    copied: Option<Vec<Copied>>,
    count: CopyCount,
}

/// A name in a directory of the source, and where its copy goes.
struct Pair<'a> {
    source: &'a Spot,
    target: &'a Spot,
    found: &'a Found,
    existing: Option<&'a Found>,
}

/// A directory that is being copied.
struct Level {
    source: Rc<dyn Folder>,
    target: Rc<dyn Folder>,
    found: Found,
    /// Those that are not copied yet.
    names: std::vec::IntoIter<Vec<u8>>,
    /// The mode that a new one gets at the end, if that is another than it has now.
    mode: Option<u32>,
}

impl<'a> Copy<'a> {
    /// A copy that has not begun. `is_same_side`: it begins and ends in one database, or in none.
    pub(crate) fn new(is_same_side: bool, mode: CopyMode, progress: &'a Progress) -> Copy<'a> {
        Copy {
            is_same_side,
            mode,
            progress,
            linked: HashMap::new(),
            made: HashSet::new(),
            warned: HashSet::new(),
            buffer: Vec::new(),
            is_whole: true,
            copied: None,
            count: CopyCount::default(),
        }
    }

    /// The same, which records what it has copied.
    pub(crate) fn recording(self) -> Copy<'a> {
        Copy {
            copied: Some(Vec::new()),
            ..self
        }
    }

    /// Copies what is at `source` to exactly `target`. Failures inside a tree are told and passed
    /// over, then [`Failure::Told`] is the result; what makes going on pointless ends the copy.
    pub(crate) fn run(&mut self, source: &Spot, target: &Spot) -> Result<()> {
        self.is_whole = true;
        // The names from the start to where the copy is.
        let mut way: Vec<Vec<u8>> = Vec::new();
        let mut levels: Vec<Level> = Vec::new();
        let found = source.find()?.ok_or_else(|| missing(source))?;
        levels.extend(self.node(source, &found, target, (target, &way))?);
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.next() else {
                let Some(level) = levels.pop() else {
                    unreachable!("it was looked at just now")
                };
                let finished = self.finish(&level, &way);
                if levels.is_empty() {
                    finished?;
                } else {
                    self.pass_over(finished)?;
                }
                way.pop();
                continue;
            };
            let spot = |folder: &Rc<dyn Folder>| Spot {
                folder: folder.clone(),
                name: name.clone(),
            };
            let (from, to) = (spot(&level.source), spot(&level.target));
            way.push(name);
            let is_deep = levels.len() >= DEPTH_MAX;
            let copied = self.child(&from, &to, (target, &way), is_deep);
            match self.pass_over(copied)? {
                Some(Some(level)) => levels.push(level),
                _ => drop(way.pop()),
            }
        }
        if self.is_whole {
            Ok(())
        } else {
            Err(Failure::Told(1))
        }
    }

    /// What a recording copy has copied below the source, the contents of a directory before the
    /// directory (`CLI-12`).
    pub(crate) fn copied(&self) -> &[Copied] {
        self.copied.as_deref().unwrap_or_default()
    }

    fn record(&mut self, way: &[Vec<u8>], found: &Found) {
        if let Some(copied) = &mut self.copied {
            copied.push((way.to_vec(), *found));
        }
    }

    /// How much was copied.
    pub(crate) fn count(&self) -> CopyCount {
        self.count
    }

    /// Tells a failure inside a tree; one that makes going on pointless is the result.
    fn pass_over<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Err(failure) if !is_fatal(&failure) => {
                self.progress.suspend(|| failure.tell());
                self.is_whole = false;
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    fn child(
        &mut self,
        source: &Spot,
        target: &Spot,
        way: (&Spot, &[Vec<u8>]),
        is_deep: bool,
    ) -> Result<Option<Level>> {
        match source.find()? {
            Some(found) if is_deep && found.kind == FileKind::Directory => {
                Err(Failure::Other(format!(
                    "'{}' lies deeper than {DEPTH_MAX} directories; copy it on its own",
                    source.show()
                )))
            }
            Some(found) => self.node(source, &found, target, way),
            // Removed since its directory was listed.
            None => Ok(None),
        }
    }

    /// Copies anything but what is in a directory. `way`: where the copy began, and the names from
    /// there.
    fn node(
        &mut self,
        source: &Spot,
        found: &Found,
        target: &Spot,
        way: (&Spot, &[Vec<u8>]),
    ) -> Result<Option<Level>> {
        let existing = target.find()?;
        if self.is_same_side && existing.is_some_and(|existing| existing.identity == found.identity)
        {
            return Err(Failure::Other(format!(
                "'{}' and '{}' are the same file; choose another destination",
                source.show(),
                target.show()
            )));
        }
        let pair = Pair {
            source,
            target,
            found,
            existing: existing.as_ref(),
        };
        match found.kind {
            FileKind::Directory => return self.directory(&pair).map(Some),
            FileKind::File => self.file(&pair, way)?,
            _ => self.other(&pair)?,
        }
        self.record(way.1, found);
        Ok(None)
    }

    fn directory(&mut self, pair: &Pair<'_>) -> Result<Level> {
        let Pair {
            source,
            target,
            found,
            existing,
        } = *pair;
        if !self.mode.is_recursive {
            return Err(Failure::Other(format!(
                "'{}' is a directory; copy it with 'larder cp -r'",
                source.show()
            )));
        }
        if self.is_same_side && self.made.contains(&found.identity) {
            return Err(Failure::Other(format!(
                "'{}' is part of the copy itself; choose a destination outside of what is copied",
                source.show()
            )));
        }
        let from = source.folder.enter(&source.name, found)?;
        // Listed before the target is made, which may lie in here (CLI-11).
        let names = from.names()?;
        let wanted = if self.mode.is_archive {
            found.mode
        } else {
            found.mode & 0o777 & !self.mode.umask
        };
        let to = match existing {
            None => {
                let folder = &target.folder;
                let made = folder.create_folder(&target.name, wanted & 0o777 | 0o700)?;
                self.made.insert(made.found()?.identity);
                made
            }
            Some(existing) if existing.kind == FileKind::Directory => {
                target.folder.enter(&target.name, existing)?
            }
            Some(_) => {
                return Err(Failure::Other(format!(
                    "'{}' is not a directory; remove it or choose another destination",
                    target.show()
                )));
            }
        };
        Ok(Level {
            source: from,
            target: to,
            found: *found,
            names: names.into_iter(),
            mode: (existing.is_none() && wanted & 0o700 != 0o700).then_some(wanted),
        })
    }

    /// The end of a directory. Last: filling it changed its times.
    fn finish(&mut self, level: &Level, way: &[Vec<u8>]) -> Result<()> {
        if self.mode.is_archive {
            self.carry_over(&*level.source, &level.found, &*level.target)?;
        } else if level.mode.is_some() {
            level.target.set_attr(&Carry {
                mode: level.mode,
                ..Carry::default()
            })?;
        }
        self.count.directories += 1;
        self.record(way, &level.found);
        Ok(())
    }

    fn file(&mut self, pair: &Pair<'_>, way: (&Spot, &[Vec<u8>])) -> Result<()> {
        let Pair {
            source,
            target,
            found,
            existing,
        } = *pair;
        let (folder, name) = (&target.folder, &target.name);
        let is_linked = self.mode.is_archive && found.nlink > 1;
        if is_linked && let Some((names, first)) = self.linked.get(&found.identity) {
            let first = (descend(way.0, names)?, first);
            self.remove_target(target, existing)?;
            folder.link(name, &*first.0.folder, &first.0.name, first.1)?;
            self.count.others += 1;
            return Ok(());
        }
        let content = source.folder.open(&source.name, found)?;
        let is_regular = existing.filter(|existing| existing.kind == FileKind::File);
        let copy = match is_regular {
            Some(existing) => folder.overwrite(name, existing)?,
            None => {
                self.remove_target(target, existing)?;
                folder.create_file(name, found.mode & 0o777 & !self.mode.umask)?
            }
        };
        if let Err(failure) = self.content(&*content, found.size_bytes, &*copy) {
            if is_regular.is_none()
                && let Err(left) = remove_again(target, &*copy)
            {
                left.tell();
            }
            return Err(failure);
        }
        if self.mode.is_archive {
            self.carry_over(&*content, found, &*copy)?;
        }
        if is_linked {
            let first = (way.1.to_vec(), copy.found()?);
            self.linked.insert(found.identity, first);
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

    fn other(&mut self, pair: &Pair<'_>) -> Result<()> {
        let Pair {
            source,
            target,
            found,
            existing,
        } = *pair;
        if !self.mode.is_recursive {
            return Err(Failure::Other(format!(
                "'{}' is a {}, not a regular file; copy it with 'larder cp -a'",
                source.show(),
                kind_words(found.kind)
            )));
        }
        let link_target;
        let new = match found.kind {
            FileKind::Symlink => {
                link_target = source.folder.read_link(&source.name)?;
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
        self.remove_target(target, existing)?;
        let mode = if found.kind == FileKind::Symlink {
            0o777
        } else {
            found.mode & 0o777 & !self.mode.umask
        };
        let made = target.folder.create_node(&target.name, new, mode)?;
        if self.mode.is_archive {
            let held = source.folder.hold(&source.name, found)?;
            self.carry_over(&*held, found, &*made)?;
        }
        self.count.others += 1;
        Ok(())
    }

    /// Removes what has the name of something new.
    fn remove_target(&self, target: &Spot, existing: Option<&Found>) -> Result<()> {
        match existing {
            None => Ok(()),
            Some(existing) if existing.kind == FileKind::Directory => Err(Failure::Other(format!(
                "'{}' is a directory; remove it or choose another destination",
                target.show()
            ))),
            Some(_) => target.folder.unlink(&target.name),
        }
    }

    /// Gives the copy the attributes of its source: owner and mode, extended attributes, times; in
    /// this order, because each may undo the later ones.
    fn carry_over(&mut self, source: &dyn Inode, found: &Found, target: &dyn Inode) -> Result<()> {
        let owner = self.mode.is_root.then_some((found.uid, found.gid));
        target.set_attr(&Carry {
            mode: Some(found.mode),
            owner,
            times_ns: None,
        })?;
        for (name, value) in source.xattrs()? {
            match target.set_xattr(&name, &value) {
                Err(failure) if !self.mode.is_strict && !is_fatal(&failure) => {
                    self.warn_attribute(&name, &failure);
                }
                result => result?,
            }
        }
        let times_ns = Some((found.atime_ns, found.mtime_ns));
        target.set_attr(&Carry {
            times_ns,
            ..Carry::default()
        })
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
}

fn missing(source: &Spot) -> Failure {
    Failure::Other(format!("there is no '{}'; check the path", source.show()))
}

/// Where `names` lead from `start` on: a directory and a name in it. No links are followed
/// (`CLI-40`).
pub(crate) fn descend(start: &Spot, names: &[Vec<u8>]) -> Result<Spot> {
    let mut spot = start.clone();
    for name in names {
        let Some(found) = spot.find()? else {
            return Err(replaced(&spot.show()));
        };
        spot = Spot {
            folder: spot.folder.enter(&spot.name, &found)?,
            name: name.clone(),
        };
    }
    Ok(spot)
}

/// Removes a new file whose content could not be copied, if it still has its name (`CLI-10`).
pub(crate) fn remove_again(target: &Spot, copy: &dyn Content) -> Result<()> {
    let made = copy.found()?;
    match target.find()? {
        Some(is) if is.is(&made) => target.folder.unlink(&target.name),
        _ => Err(replaced(&target.show())),
    }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
