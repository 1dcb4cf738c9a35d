//! A provider of one's own: a store whose file `N` contains the square of `N`.
//!
//! `cargo run -p larder --example provider` makes `squares.larder` in the temporary directory.

use larder::*;
use std::{path::Path, sync::Arc};

fn main() -> Result<()> {
    let path = std::env::temp_dir().join("squares.larder");
    run(&path).map(|content| println!("the square of 12 is {content}"))
}

/// Makes a database with a store of squares, and returns what its file `12` contains.
pub fn run(path: &Path) -> Result<String> {
    Database::create(path, &CreateOptions::default())?;
    let mut options = DatabaseOptions::default();
    let squares: ProviderFactory = Arc::new(|context| Arc::new(Squares(context.store)));
    options.providers.insert("squares".to_owned(), squares);
    let database = Database::open(path, options)?;
    database.stores().create("squares", "squares", None, None)?;
    let content = database.files().read(b"/squares/12")?;
    database.close()?;
    Ok(String::from_utf8_lossy(&content).into())
}

/// Inode 1 is the root, inode `N + 1` the file `N`.
struct Squares(StoreId);

impl StoreProvider for Squares {
    fn lookup(&self, _parent: Ino, name: &Name) -> Result<Metadata> {
        match String::from_utf8_lossy(name.as_bytes()).parse::<u64>() {
            Ok(number @ 1..100) => self.metadata(Ino(number + 1)),
            _ => Err(Error::new(ErrorKind::NotFound, "only 1 to 99 are there")),
        }
    }
    fn metadata(&self, ino: Ino) -> Result<Metadata> {
        let node = NodeId { store: self.0, ino };
        let mut attr = Metadata::new(node, FileKind::File, 0o444);
        match ino {
            Ino::ROOT => (attr.kind, attr.mode) = (FileKind::Directory, 0o555),
            _ => attr.size_bytes = square(ino).len() as u64,
        }
        Ok(attr)
    }
    fn read_dir(&self, _: Ino, after: Option<&Name>, limit: usize) -> Result<Vec<DirEntry>> {
        let entry = |number: u64| {
            let name = Name::new(number.to_string().as_bytes())?;
            let Metadata { node, kind, .. } = self.metadata(Ino(number + 1))?;
            Ok(DirEntry { name, node, kind })
        };
        let after = after.map(|name| self.lookup(Ino::ROOT, name)).transpose()?;
        let first = after.map_or(1, |last| last.node.ino.0);
        (first..100).take(limit).map(entry).collect()
    }
    fn parent(&self, _: Ino) -> Result<Ino> {
        Ok(Ino::ROOT)
    }
    fn open(&self, ino: Ino, _write: bool) -> Result<Box<dyn FileHandle>> {
        Ok(Box::new(Square(self.metadata(ino)?)))
    }
}

fn square(ino: Ino) -> String {
    (ino.0 - 1).pow(2).to_string()
}

struct Square(Metadata);
impl FileHandle for Square {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let text = square(self.0.node.ino);
        let rest = text.as_bytes().get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
    fn metadata(&self) -> Result<Metadata> {
        Ok(self.0.clone())
    }
}
