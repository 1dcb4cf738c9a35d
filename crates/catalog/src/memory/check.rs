//! Looking through all that a catalog in memory holds, and proving that it is consistent in itself.
//! Findings are worded as the SQLite catalog words them.

use super::state::{State, Tables, is_directory};
use larder_format::Ino;
use std::collections::BTreeSet;

impl State {
    pub(super) fn check_space(&self, findings: &mut Vec<String>) {
        let rows: Vec<_> = self.space.extents().collect();
        for pair in rows
            .windows(2)
            .filter(|pair| pair[0].extent.overlaps(&pair[1].extent))
        {
            findings.push(format!(
                "larder_extent: {} overlap the row at {} (CATALOG-1)",
                pair[0].extent, pair[1].extent.start_block
            ));
        }
        for row in &rows {
            let (extent, store) = (row.extent, row.store);
            let place = format!("segment {} block {}", extent.segment, extent.start_block);
            let block_count = self.space.segments.get(&extent.segment);
            if block_count.is_none_or(|count| extent.end_block() > *count) {
                let has = block_count.map_or("no row".into(), |count| format!("{count} blocks"));
                findings.push(format!(
                    "larder_extent: {extent} lie beyond the segment, which has {has} (CATALOG-1)"
                ));
            }
            if row.retired_seq.is_none() && !self.stores.contains_key(&store) {
                findings.push(format!(
                    "larder_extent: {place} is held by store {store}, which does not exist"
                ));
            }
            if let Some(seq) = row.retired_seq.filter(|seq| *seq > self.info.commit_seq) {
                findings.push(format!(
                    "larder_extent: {place} was retired by commit {seq}, which has not happened"
                ));
            }
        }
        for ((segment, start), row) in &self.space.rows {
            let owner = row.owner();
            if row.sharers.contains(&owner) {
                findings.push(format!(
                    "larder_shared: inode {} of store {} owns what it shares at segment {segment} \
                     block {start} (SHARE-1)",
                    owner.1, owner.0
                ));
            }
        }
    }

    pub(super) fn check_holders(&self, findings: &mut Vec<String>) {
        for (store, ino, session) in &self.holders {
            if !self.orphans.contains_key(&(*store, *ino)) {
                findings.push(format!(
                    "larder_holder: session {session} holds inode {ino} of store {store}, which \
                     is no orphan"
                ));
            }
            if !self.sessions.contains_key(session) {
                findings.push(format!(
                    "larder_holder: inode {ino} of store {store} is held by session {session}, \
                     which does not exist"
                ));
            }
        }
    }
}

impl Tables {
    pub(super) fn check(&self, name: &str, next_ino: u64, findings: &mut Vec<String>) {
        let root = self.inodes.get(&Ino::ROOT);
        if !root.is_some_and(|root| is_directory(&root.row)) {
            findings.push(format!(
                "{name}: the root directory, inode 1, is missing or no directory"
            ));
        }
        for (parent, names) in &self.dirents {
            for ((_, entry), ino) in names {
                let entry = quoted(entry.as_bytes());
                if !self.inodes.contains_key(ino) {
                    findings.push(format!(
                        "{name}_dirent: {entry} in directory {parent} names inode {ino}, which \
                         does not exist"
                    ));
                }
                let kind = self.inodes.get(parent).map(|inode| inode.row.kind.as_str());
                if kind != Some("dir") {
                    let is = kind.map_or("missing".into(), |kind| format!("a {kind}"));
                    findings.push(format!(
                        "{name}_dirent: {entry} lies in inode {parent}, which is {is}"
                    ));
                }
            }
        }
        for (ino, inode) in &self.inodes {
            let (nlink, name_count) = (inode.row.nlink, self.names_of(*ino).count());
            if !is_directory(&inode.row) {
                if nlink as usize != name_count {
                    findings.push(format!(
                        "{name}: inode {ino} has nlink {nlink} and {name_count} names"
                    ));
                }
            } else {
                // One without a name is an orphan: nothing counts it.
                let is_named = *ino == Ino::ROOT || name_count > 0;
                let expected = if is_named {
                    2 + self.child_count(*ino)
                } else {
                    0
                };
                if nlink as usize != expected {
                    findings.push(format!(
                        "{name}: directory {ino} has nlink {nlink}, expected {expected}"
                    ));
                }
            }
            if ino.0 >= next_ino {
                findings.push(format!(
                    "{name}: inode {ino} is not below next_ino (CATALOG-4)"
                ));
            }
        }
        for ino in self
            .contents
            .keys()
            .filter(|ino| !self.inodes.contains_key(ino))
        {
            findings.push(format!("{name}_content: there is no inode {ino}"));
        }
        let mapped = self.maps.iter().filter(|(_, pages)| !pages.is_empty());
        for (ino, _) in mapped {
            let kind = self.inodes.get(ino).map(|inode| inode.row.kind.as_str());
            if kind != Some("file") {
                findings.push(format!("{name}_map: there is no file {ino}"));
            }
            if self.contents.contains_key(ino) {
                findings.push(format!(
                    "{name}_map: inode {ino} has inline content as well"
                ));
            }
        }
    }

    /// Directories among the entries of one.
    fn child_count(&self, directory: Ino) -> usize {
        let children = self.dirents_after(directory, None);
        let children = children.filter_map(|(_, ino)| self.inodes.get(&ino));
        children.filter(|child| is_directory(&child.row)).count()
    }

    pub(super) fn check_orphans(
        &self,
        name: &str,
        orphans: &BTreeSet<Ino>,
        findings: &mut Vec<String>,
    ) {
        for (ino, inode) in &self.inodes {
            if inode.row.nlink == 0 && !orphans.contains(ino) {
                findings.push(format!("{name}: inode {ino} has no name and is no orphan"));
            }
        }
        for ino in orphans {
            let is = match self.inodes.get(ino).map(|inode| inode.row.nlink) {
                Some(0) => continue,
                Some(nlink) => format!("has nlink {nlink}"),
                None => "does not exist".into(),
            };
            findings.push(format!("larder_orphan: inode {ino} of {name} {is}"));
        }
    }
}

/// A name as SQL writes it.
fn quoted(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) => format!("'{}'", text.replace('\'', "''")),
        Err(_) => {
            let digits: String = name.iter().map(|byte| format!("{byte:02X}")).collect();
            format!("X'{digits}'")
        }
    }
}
