//! The kinds of requests.

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal $text:literal,)+) => {
        /// What a request asks for. The numbers are the kernel's, all below [`Opcode::BOUND`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Opcode {
            $($(#[$doc])* $name = $number,)+
        }

        impl Opcode {
            /// All of them.
            pub const ALL: &[Opcode] = &[$(Opcode::$name,)+];

            /// The kernel's number as an opcode; `None` for one that is not served here.
            pub const fn from_number(number: u32) -> Option<Opcode> {
                match number {
                    $($number => Some(Opcode::$name),)+
                    _ => None,
                }
            }

            /// A name for logs and metrics, lower case.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Opcode::$name => $text,)+
                }
            }
        }
    };
}

opcodes! {
    /// A name in a directory.
    Lookup = 1 "lookup",
    /// The kernel gives up lookups of one node.
    Forget = 2 "forget",
    /// Attributes.
    Getattr = 3 "getattr",
    /// Changes attributes.
    Setattr = 4 "setattr",
    /// Target of a symbolic link.
    Readlink = 5 "readlink",
    /// Makes a symbolic link.
    Symlink = 6 "symlink",
    /// Makes any node but directories and links.
    Mknod = 8 "mknod",
    /// Makes a directory.
    Mkdir = 9 "mkdir",
    /// Removes a name.
    Unlink = 10 "unlink",
    /// Removes a directory.
    Rmdir = 11 "rmdir",
    /// Renames, without flags.
    Rename = 12 "rename",
    /// Another name for a node.
    Link = 13 "link",
    /// Opens a file.
    Open = 14 "open",
    /// Reads.
    Read = 15 "read",
    /// Writes.
    Write = 16 "write",
    /// How full it is.
    Statfs = 17 "statfs",
    /// The last descriptor of an open file is closed.
    Release = 18 "release",
    /// Makes a file durable.
    Fsync = 20 "fsync",
    /// Sets an extended attribute.
    Setxattr = 21 "setxattr",
    /// Reads an extended attribute.
    Getxattr = 22 "getxattr",
    /// Names of extended attributes.
    Listxattr = 23 "listxattr",
    /// Removes an extended attribute.
    Removexattr = 24 "removexattr",
    /// A descriptor is closed.
    Flush = 25 "flush",
    /// The first request of a session.
    Init = 26 "init",
    /// Opens a directory.
    Opendir = 27 "opendir",
    /// Lists a directory.
    Readdir = 28 "readdir",
    /// Closes a directory.
    Releasedir = 29 "releasedir",
    /// Makes a directory durable.
    Fsyncdir = 30 "fsyncdir",
    /// Asks for a lock that is in the way.
    Getlk = 31 "getlk",
    /// Sets a lock, or fails.
    Setlk = 32 "setlk",
    /// Sets a lock, or waits.
    Setlkw = 33 "setlkw",
    /// Asks for permission.
    Access = 34 "access",
    /// Makes a file and opens it.
    Create = 35 "create",
    /// A process was interrupted while it waited for a reply.
    Interrupt = 36 "interrupt",
    /// The end.
    Destroy = 38 "destroy",
    /// A device control.
    Ioctl = 39 "ioctl",
    /// The kernel gives up lookups of many nodes.
    BatchForget = 42 "batch_forget",
    /// Allocates, punches, zeroes, inserts, collapses.
    Fallocate = 43 "fallocate",
    /// Lists a directory with attributes.
    Readdirplus = 44 "readdirplus",
    /// Renames, with flags.
    Rename2 = 45 "rename2",
    /// Data or hole.
    Lseek = 46 "lseek",
    /// Copies between files; answers 32 bits.
    CopyFileRange = 47 "copy_file_range",
    /// Makes everything durable.
    Syncfs = 50 "syncfs",
    /// Makes a file without a name and opens it.
    Tmpfile = 51 "tmpfile",
    /// Attributes with the time of birth.
    Statx = 52 "statx",
    /// Copies between files; answers 64 bits.
    CopyFileRange64 = 53 "copy_file_range_64",
}

impl Opcode {
    /// Above every number.
    pub const BOUND: usize = 64;

    /// Whether nobody waits for a reply.
    pub const fn is_silent(self) -> bool {
        matches!(
            self,
            Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_opcodes_are_the_same() {
        for &opcode in Opcode::ALL {
            let number = opcode as u32;
            assert!((number as usize) < Opcode::BOUND);
            assert_eq!(Opcode::from_number(number), Some(opcode));
        }
        for unserved in [0, 7, 37, 40, 48, 49, 54, 4096] {
            assert_eq!(Opcode::from_number(unserved), None);
        }
    }
}
