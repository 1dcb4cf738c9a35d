//! All recorded files of one database, as the medium holds them at one moment.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::event::{Event, FileName, Payload, SEGMENTS};
use crate::image::Image;

/// Files by name. Cheap to clone: the bytes are shared until they change.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    files: BTreeMap<FileName, Arc<Image>>,
}

impl Disk {
    /// A file's content, if the file is there.
    pub fn find(&self, file: &str) -> Option<&Image> {
        self.files.get(file).map(|image| &**image)
    }

    /// All files, by name.
    pub fn files(&self) -> impl Iterator<Item = (&str, &Image)> {
        self.files.iter().map(|(name, image)| (&**name, &**image))
    }

    /// The segment files by name.
    pub fn segments(&self) -> impl Iterator<Item = (&str, &Image)> {
        self.files().filter(|(name, _)| name.starts_with(SEGMENTS))
    }

    /// Puts the catalog's files into `directory`, and removes every other file there (not the
    /// subdirectories): shared memory and lock files do not survive a crash.
    pub fn write_catalog(&self, directory: &Path) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if !entry.file_type()?.is_dir()
                && self.find(&entry.file_name().to_string_lossy()).is_none()
            {
                fs::remove_file(entry.path())?;
            }
        }
        for (name, image) in self.files().filter(|(name, _)| !name.starts_with(SEGMENTS)) {
            fs::write(directory.join(name), image.to_vec())?;
        }
        Ok(())
    }

    /// Puts the segment files into `directory/segments`, as sparse files; others there are removed.
    pub fn write_segments(&self, directory: &Path) -> io::Result<()> {
        let segments = directory.join(SEGMENTS);
        match fs::remove_dir_all(&segments) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir(&segments)?,
        }
        for (name, image) in self.segments() {
            let file = File::create(directory.join(name))?;
            file.set_len(image.len_bytes())?;
            for (offset_bytes, bytes) in image.data() {
                file.write_all_at(bytes, offset_bytes)?;
            }
        }
        Ok(())
    }

    /// Does what `event` did. Flushes and acks change nothing.
    pub(crate) fn apply(&mut self, event: &Event) {
        match event {
            Event::Create { file } => {
                self.files.insert(file.clone(), Arc::default());
            }
            Event::Delete { file, .. } => {
                self.files.remove(file);
            }
            Event::Truncate { file, len_bytes } => {
                if let Some(image) = self.image_mut(file) {
                    image.truncate(*len_bytes);
                }
            }
            Event::Write {
                file,
                offset_bytes,
                bytes,
            } => {
                let Some(image) = self.image_mut(file) else {
                    return;
                };
                match bytes {
                    Payload::Zeros(len_bytes) => image.write_zeros(*offset_bytes, *len_bytes),
                    Payload::Bytes(bytes) => image.write(*offset_bytes, bytes),
                }
            }
            Event::Flush { .. } | Event::SyncNames { .. } | Event::Ack(_) => {}
        }
    }

    /// Does part of what a write did: of its pieces, cut at multiples of `unit_bytes` of the file,
    /// those that `keeps` chooses.
    pub(crate) fn apply_torn(
        &mut self,
        event: &Event,
        unit_bytes: u64,
        mut keeps: impl FnMut() -> bool,
    ) {
        let Event::Write {
            file,
            offset_bytes,
            bytes,
        } = event
        else {
            return self.apply(event);
        };
        let Some(image) = self.image_mut(file) else {
            return;
        };
        let (mut at, end) = (*offset_bytes, offset_bytes + bytes.len_bytes());
        while at < end {
            let next = end.min((at / unit_bytes + 1) * unit_bytes);
            if keeps() {
                match bytes {
                    Payload::Zeros(_) => image.write_zeros(at, next - at),
                    Payload::Bytes(bytes) => {
                        let (from, to) = (at - offset_bytes, next - offset_bytes);
                        image.write(at, &bytes[from as usize..to as usize]);
                    }
                }
            }
            at = next;
        }
    }

    fn image_mut(&mut self, file: &str) -> Option<&mut Image> {
        self.files.get_mut(file).map(Arc::make_mut)
    }
}
