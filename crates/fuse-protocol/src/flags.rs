//! Sets of flags that both sides know.

macro_rules! flags {
    ($(#[$meta:meta])* $name:ident: $bits:ty {
        $($(#[$doc:meta])* $flag:ident = $bit:literal;)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name($bits);

        impl $name {
            $($(#[$doc])* pub const $flag: $name = $name(1 << $bit);)+

            /// No flag.
            pub const NONE: $name = $name(0);

            /// A set from the kernel's bits, also those that have no name here.
            pub const fn from_bits(bits: $bits) -> $name {
                $name(bits)
            }

            /// The kernel's bits.
            pub const fn bits(self) -> $bits {
                self.0
            }

            /// Whether all of `other` are in it.
            pub const fn contains(self, other: $name) -> bool {
                self.0 & other.0 == other.0
            }

            /// What is in either.
            pub const fn union(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }

            /// What is in both.
            pub const fn intersection(self, other: $name) -> $name {
                $name(self.0 & other.0)
            }

            /// What is in this one and not in `other`.
            pub const fn difference(self, other: $name) -> $name {
                $name(self.0 & !other.0)
            }
        }

        impl std::ops::BitOr for $name {
            type Output = $name;
            fn bitor(self, other: $name) -> $name {
                self.union(other)
            }
        }

        impl std::ops::BitAnd for $name {
            type Output = $name;
            fn bitand(self, other: $name) -> $name {
                self.intersection(other)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut left = self.0;
                let mut names = out.debug_set();
                $(if self.contains($name::$flag) {
                    left &= !(1 << $bit);
                    names.entry(&format_args!("{}", stringify!($flag)));
                })+
                if left != 0 {
                    names.entry(&format_args!("{left:#x}"));
                }
                names.finish()
            }
        }
    };
}

flags! {
    /// What kernel and filesystem agree on in INIT.
    InitFlags: u64 {
        /// Several reads of one file at once.
        ASYNC_READ = 0;
        /// POSIX locks are ours: GETLK, SETLK, SETLKW.
        POSIX_LOCKS = 1;
        /// `O_TRUNC` comes with OPEN, without a SETATTR before it.
        ATOMIC_O_TRUNC = 3;
        /// LOOKUP of `.` and `..` works (NFS export).
        EXPORT_SUPPORT = 4;
        /// Writes of more than one page. The session always asks for it.
        BIG_WRITES = 5;
        /// The umask is left to the filesystem.
        DONT_MASK = 6;
        /// `flock` locks are ours.
        FLOCK_LOCKS = 10;
        /// Pages are dropped when size or mtime change.
        AUTO_INVAL_DATA = 12;
        /// READDIRPLUS is there.
        DO_READDIRPLUS = 13;
        /// READDIRPLUS where it pays only.
        READDIRPLUS_AUTO = 14;
        /// Several direct requests of one file at once.
        ASYNC_DIO = 15;
        /// Writes stay in the page cache and come later.
        WRITEBACK_CACHE = 16;
        /// `ENOSYS` to OPEN means: no OPEN from now on.
        NO_OPEN_SUPPORT = 17;
        /// Lookups and listings of one directory at once.
        PARALLEL_DIROPS = 18;
        /// Version one of killing set-id bits.
        HANDLE_KILLPRIV = 19;
        /// ACLs are stored here and enforced by the kernel.
        POSIX_ACL = 20;
        /// An aborted connection reads as `ECONNABORTED`.
        ABORT_ERROR = 21;
        /// `max_pages` in the reply counts. The session always asks for it.
        MAX_PAGES = 22;
        /// Targets of symbolic links are cached.
        CACHE_SYMLINKS = 23;
        /// `ENOSYS` to OPENDIR means: no OPENDIR from now on.
        NO_OPENDIR_SUPPORT = 24;
        /// Pages are dropped when we say so only.
        EXPLICIT_INVAL_DATA = 25;
        /// Set-id bits are cleared here, when the request says so.
        HANDLE_KILLPRIV_V2 = 28;
        /// SETXATTR has flags of its own.
        SETXATTR_EXT = 29;
        /// There are more than 32 flags. The session always asks for it.
        INIT_EXT = 30;
        /// Makers of nodes get the security context.
        SECURITY_CTX = 32;
        /// Makers of nodes get the supplementary group that matches the parent.
        CREATE_SUPP_GROUP = 34;
        /// Entries can expire without being unhashed.
        HAS_EXPIRE_ONLY = 35;
        /// Shared mappings of files that are open for direct I/O.
        DIRECT_IO_ALLOW_MMAP = 36;
        /// Reads and writes can go to another file in the kernel.
        PASSTHROUGH = 37;
        /// File handles for NFS are refused.
        NO_EXPORT_SUPPORT = 38;
        /// Requests can be asked for again.
        HAS_RESEND = 39;
        /// Mappings of users by the mount.
        ALLOW_IDMAP = 40;
        /// Requests by io_uring.
        OVER_IO_URING = 41;
        /// Requests time out.
        REQUEST_TIMEOUT = 42;
    }
}

flags! {
    /// How the kernel treats a file from its OPEN on.
    FopenFlags: u32 {
        /// Past the page cache.
        DIRECT_IO = 0;
        /// What is cached of the file stays.
        KEEP_CACHE = 1;
        /// No position: seeking fails.
        NONSEEKABLE = 2;
        /// The listing of this directory may be cached.
        CACHE_DIR = 3;
        /// A stream: no position at all.
        STREAM = 4;
        /// No FLUSH at close.
        NOFLUSH = 5;
        /// Several direct writes to one file at once.
        PARALLEL_DIRECT_WRITES = 6;
        /// Reads and writes go to the backing file.
        PASSTHROUGH = 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_the_bits_of_the_header() {
        assert_eq!(InitFlags::PARALLEL_DIROPS.bits(), 1 << 18);
        assert_eq!(InitFlags::REQUEST_TIMEOUT.bits(), 1 << 42);
        let both = FopenFlags::KEEP_CACHE | FopenFlags::NOFLUSH;
        assert_eq!(both.bits(), 0x22);
        assert!(both.contains(FopenFlags::NOFLUSH));
        assert!(!FopenFlags::NOFLUSH.contains(both));
        assert_eq!(both.difference(FopenFlags::NOFLUSH), FopenFlags::KEEP_CACHE);
        assert_eq!(both & FopenFlags::NOFLUSH, FopenFlags::NOFLUSH);
        let unknown = InitFlags::from_bits(1 << 63 | 1);
        assert_eq!(format!("{unknown:?}"), "{ASYNC_READ, 0x8000000000000000}");
    }
}
