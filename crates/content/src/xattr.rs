//! Extended attributes of the `files` provider: which names there are, and what stands behind them.
//!
//! | name | what it is |
//! |---|---|
//! | `user.column.NAME` | a column that the user added to the store's table |
//! | `system.posix_acl_access`, `system.posix_acl_default` | access control lists, see `acl` |
//! | any other in `user.`, `trusted.`, `security.` | bytes |
//!
//! Who may see or change which is for the kernel to decide.

use crate::acl::{ACCESS_XATTR, Acl, DEFAULT_XATTR};
use crate::inode_flags::require_free;
use crate::set_id::SETGID;
use crate::types::XattrMode;
use larder_object::format::limits::{
    XATTR_LIST_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX,
};
use larder_object::format::{FileKind, Ino, StoreId};
use larder_object::{AttrMask, Engine, Error, ErrorKind, Node, Result, View, WriteGuard};
use std::ops::Deref;
use std::sync::Arc;

/// User columns show under this prefix.
const COLUMN_PREFIX: &[u8] = b"user.column.";
/// The namespaces of plain attributes.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// The access control lists that a new node inherits, as values of attributes.
#[derive(Default)]
pub(crate) struct Inherited {
    access: Option<Vec<u8>>,
    default: Option<Vec<u8>>,
}

impl Inherited {
    /// Gives them to the node.
    pub(crate) fn give(self, change: &WriteGuard<'_>, node: &Arc<Node>) -> Result<()> {
        let lists = [(ACCESS_XATTR, self.access), (DEFAULT_XATTR, self.default)];
        for (name, list) in lists {
            if let Some(list) = list {
                change.set_xattr(node, name, Some(&list))?;
            }
        }
        Ok(())
    }
}

/// Reads the extended attributes of one store's table.
pub(crate) struct XattrReader<V> {
    view: Arc<V>,
    table: StoreId,
}

impl<V: Deref<Target = View>> XattrReader<V> {
    pub(crate) fn new(view: Arc<V>, table: StoreId) -> XattrReader<V> {
        XattrReader { view, table }
    }

    /// The names of all extended attributes.
    pub(crate) fn names(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let mut names: Vec<Vec<u8>> = {
            let look = self.view.lookup().begin();
            let node = look.node(self.table, ino)?;
            look.xattrs(&node)?
                .into_iter()
                .map(|(name, _)| name)
                .collect()
        };
        for column in self.view.user_columns(self.table)? {
            if self.view.user_column(self.table, ino, &column)?.is_some() {
                names.push([COLUMN_PREFIX, column.as_bytes()].concat());
            }
        }
        Ok(names)
    }

    /// The value of an extended attribute.
    pub(crate) fn value(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let value = match self.column_of(name)? {
            Some(column) => self.view.user_column(self.table, ino, column)?,
            None => {
                let look = self.view.lookup().begin();
                let node = look.node(self.table, ino)?;
                let value = look.find_xattr(&node, name)?;
                match value {
                    Some(value) if name == ACCESS_XATTR => {
                        let mode = look.row(&node)?.mode; // ACL-1
                        Some(stored(&node, &value)?.with_mode(mode).encode())
                    }
                    other => other,
                }
            }
        };
        value.ok_or_else(|| no_attribute(name))
    }

    fn column_of<'n>(&self, name: &'n [u8]) -> Result<Option<&'n str>> {
        let Some(column) = name.strip_prefix(COLUMN_PREFIX) else {
            return Ok(None);
        };
        let column = std::str::from_utf8(column).map_err(|_| no_attribute(name))?;
        if !self
            .view
            .user_columns(self.table)?
            .iter()
            .any(|known| known.eq_ignore_ascii_case(column))
        {
            // A column is made by ALTER TABLE, not here.
            return Err(no_attribute(name));
        }
        Ok(Some(column))
    }
}

/// The extended attributes of one store's table.
pub(crate) struct Xattrs {
    engine: Arc<Engine>,
    reader: XattrReader<Engine>,
    table: StoreId,
}

impl Xattrs {
    pub(crate) fn new(engine: Arc<Engine>, table: StoreId) -> Xattrs {
        Xattrs {
            reader: XattrReader::new(Arc::clone(&engine), table),
            engine,
            table,
        }
    }

    /// The mode and the lists of what is made in `dir` with `mode`: by the directory's default
    /// list, or without one by the umask (`ACL-3`).
    pub(crate) fn inherit(
        &self,
        change: &WriteGuard<'_>,
        dir: &Node,
        is_directory: bool,
        mode: u32,
        umask: u32,
    ) -> Result<(u32, Inherited)> {
        let Some(value) = change.find_xattr(dir, DEFAULT_XATTR)? else {
            return Ok((mode & !(umask & 0o777), Inherited::default()));
        };
        let (mode, access) = stored(dir, &value)?.inherit(mode);
        let lists = Inherited {
            access: access.map(|access| access.encode()),
            default: is_directory.then_some(value),
        };
        Ok((mode, lists))
    }

    /// Sets an extended attribute.
    pub(crate) fn set(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        require_name(name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::TooBig,
                "the value of an extended attribute has at most 65536 bytes",
            ));
        }
        if let Some(column) = self.reader.column_of(name)? {
            let check = |has_it| require_mode(mode, has_it, name);
            return self.engine.namespace().set_user_column(
                self.table,
                ino,
                column,
                Some(value),
                check,
            );
        }
        let change = self.engine.namespace().write_guard()?;
        let node = change.node(self.table, ino)?;
        require_free(&change.row(&node)?)?;
        let has_it = change.find_xattr(&node, name)?.is_some();
        require_mode(mode, has_it, name)?;
        if name == ACCESS_XATTR || name == DEFAULT_XATTR {
            self.change_acl(&change, &node, name, Acl::decode(value)?, mode)?;
            return change.commit();
        }
        if !has_it {
            let names = change.xattrs(&node)?;
            let listed: usize = names.iter().map(|(name, _)| name.len() + 1).sum();
            if listed + name.len() + 1 > XATTR_LIST_BYTES_MAX {
                let why = format!(
                    "an inode's attributes have names of {XATTR_LIST_BYTES_MAX} bytes in all"
                );
                return Err(Error::new(ErrorKind::NoSpace, why));
            }
        }
        change.set_xattr(&node, name, Some(value))?;
        change.commit()
    }

    /// Sets or removes an access control list; an access list sets the mode.
    fn change_acl(
        &self,
        change: &WriteGuard<'_>,
        node: &Arc<Node>,
        name: &[u8],
        acl: Option<Acl>,
        mode: XattrMode,
    ) -> Result<()> {
        match node.kind() {
            FileKind::Symlink => {
                let why = "a symbolic link has no access control list";
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
            FileKind::Directory => {}
            _ if name == DEFAULT_XATTR && acl.is_some() => {
                let why = "only directories have a default access control list";
                return Err(Error::new(ErrorKind::NotPermitted, why));
            }
            _ => {}
        }
        let kept = acl
            .as_ref()
            .filter(|acl| name == DEFAULT_XATTR || !acl.is_minimal()); // ACL-2
        let value = kept.map(Acl::encode);
        if value.is_some() || change.find_xattr(node, name)?.is_some() {
            change.set_xattr(node, name, value.as_deref())?;
        }
        let Some(acl) = acl.filter(|_| name == ACCESS_XATTR) else {
            return Ok(());
        };
        let mask = AttrMask {
            mode: true,
            ctime: true,
            ..AttrMask::default()
        };
        let now_ns = change.now_ns;
        let dropped = match mode {
            XattrMode::SetDroppingSetgid => SETGID,
            _ => 0,
        };
        change.update(node, mask, |row| {
            row.mode = (row.mode & !0o777 | acl.mode_bits()) & !dropped;
            row.ctime_ns = now_ns;
        })?;
        Ok(())
    }

    /// Removes an extended attribute.
    pub(crate) fn remove(&self, ino: Ino, name: &[u8]) -> Result<()> {
        if let Some(column) = self.reader.column_of(name)? {
            let check = |has_it| match has_it {
                true => Ok(()),
                false => Err(no_attribute(name)),
            };
            return self
                .engine
                .namespace()
                .set_user_column(self.table, ino, column, None, check);
        }
        let change = self.engine.namespace().write_guard()?;
        let node = change.node(self.table, ino)?;
        require_free(&change.row(&node)?)?;
        if change.find_xattr(&node, name)?.is_none() {
            // Who has no list can be told to have none.
            if name == ACCESS_XATTR || name == DEFAULT_XATTR {
                return Ok(());
            }
            return Err(no_attribute(name));
        }
        change.set_xattr(&node, name, None)?;
        change.commit()
    }
}

/// A list as it was stored, which was checked then.
fn stored(node: &Node, value: &[u8]) -> Result<Acl> {
    let damaged = || {
        let what = format!(
            "the access control list of inode {} is damaged; remove it",
            node.ino()
        );
        Error::new(ErrorKind::Corrupt, what)
    };
    Acl::decode(value).ok().flatten().ok_or_else(damaged)
}

fn require_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "the name of an extended attribute has 1 to 255 bytes",
        ));
    }
    if name == ACCESS_XATTR || name == DEFAULT_XATTR {
        return Ok(());
    }
    match NAMESPACES
        .iter()
        .find_map(|space| name.strip_prefix(*space))
    {
        Some(rest) if !rest.is_empty() => Ok(()),
        Some(_) => Err(Error::new(
            ErrorKind::InvalidInput,
            "a namespace alone is no name of an attribute",
        )),
        None => Err(Error::new(
            ErrorKind::Unsupported,
            "attributes have names in user., trusted. or security.; in system. there are two for \
             access control lists",
        )),
    }
}

fn require_mode(mode: XattrMode, has_it: bool, name: &[u8]) -> Result<()> {
    match (mode, has_it) {
        (XattrMode::Create, true) => Err(Error::new(
            ErrorKind::Exists,
            format!("'{}' exists already", String::from_utf8_lossy(name)),
        )),
        (XattrMode::Replace, false) => Err(no_attribute(name)),
        _ => Ok(()),
    }
}

fn no_attribute(name: &[u8]) -> Error {
    Error::new(
        ErrorKind::NoAttribute,
        format!("there is no attribute '{}'", String::from_utf8_lossy(name)),
    )
}
