//! What the papers found: one entry for each figure or table that the report redraws.
//!
//! Facts come from \[FRAG\] (CIDR 2007), \[BLOB\] (MSR-TR-2006-45), \[DBFS\] (SIGMOD 2011) and
//! \[CLUSTER\]. Where a paper gives a range, its middle is drawn, with the range as bounds.

/// A figure of a paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paper {
    /// Name of the figure: of its section and of its files.
    pub id: &'static str,
    /// For people.
    pub title: &'static str,
    /// Where it stands in the papers.
    pub source: &'static str,
    /// What was found there.
    pub found: &'static str,
    /// Why it may be otherwise here.
    pub differs: &'static str,
    /// What measures it.
    pub command: &'static str,
}

/// KB of the papers.
pub const KB: f64 = 1024.0;
/// MB of the papers.
pub const MB: f64 = 1024.0 * KB;

/// \[FRAG\], \[BLOB\]: read throughput after bulk load.
pub const READ_AFTER_LOAD: Paper = Paper {
    id: "read-after-load",
    title: "Reading a store that was just filled",
    source: "[FRAG] and [BLOB]: read throughput after bulk load",
    found: "On a clean store the database read objects faster up to about 1 MB, both were equal \
        at 1 MB, and files were faster at 10 MB.",
    differs: "Their disk paid for each file that had to be found and opened; a virtual disk or an \
        SSD hides seeks, and today's caches and read-ahead are larger.",
    command: "larder lab run break-even",
};

/// \[FRAG\], \[BLOB\]: read throughput at ages.
pub const READ_AGED: Paper = Paper {
    id: "read-aged",
    title: "Reading as the store ages",
    source: "[FRAG] and [BLOB]: read throughput at ages 0, 2 and 4",
    found: "After four overwrites of each object the database had fragmented so much that the \
        break-even size fell from 1 MB to 256 KB.",
    differs: "Fragments cost as much as the disk below them: on theirs each was a seek of many \
        milliseconds, on flash or behind a host's cache it is one request more.",
    command: "larder lab run break-even",
};

/// \[FRAG\], \[BLOB\]: fragments per object of 10 MB.
pub const FRAGMENTS_LARGE: Paper = Paper {
    id: "fragments-large",
    title: "Fragments of large objects",
    source: "[FRAG] and [BLOB]: long-term fragmentation, 10 MB",
    found: "At storage age 10, objects of 10 MB lay in 4 to 5 fragments on NTFS, which levelled \
        off, and in about 35 in SQL Server, growing in a straight line.",
    differs: "Today's filesystems delay allocation until they know more of a file; their volumes \
        were 40 to 400 GB, and how full a small volume is weighs more.",
    command: "larder lab run age",
};

/// \[FRAG\], \[BLOB\]: fragments per small object.
pub const FRAGMENTS_SMALL: Paper = Paper {
    id: "fragments-small",
    title: "Fragments of small objects",
    source: "[FRAG] and [BLOB]: long-term fragmentation, small objects",
    found: "Small objects converged in both systems to about one fragment for each write request \
        of 64 KB: 4 for an object of 256 KB.",
    differs: "Neither system was told the final size, and each request was placed by itself; a \
        store that gathers requests before it looks for space has no reason to cut there.",
    command: "larder lab run age",
};

/// \[FRAG\], \[BLOB\]: write throughput between ages.
pub const WRITE_BETWEEN: Paper = Paper {
    id: "write-between",
    title: "Writing between two ages",
    source: "[FRAG] and [BLOB]: write throughput between ages",
    found: "Filling the store with objects of 512 KB, the database wrote 17.7 MB/s and files 10.1 \
        MB/s. Overwriting was measured as the mean between two ages.",
    differs: "There the database logged in bulk and files were flushed one by one on a disk of \
        2005; here every replacement is durable before the next one begins.",
    command: "larder lab run age",
};

/// \[FRAG\], \[BLOB\]: constant and uniform sizes.
pub const SIZE_DISTRIBUTION: Paper = Paper {
    id: "size-distribution",
    title: "Objects of one size, and of many",
    source: "[FRAG] and [BLOB]: constant and uniform sizes",
    found: "Objects of one size and objects of uniformly distributed sizes with the same mean \
        fragmented alike.",
    differs: "With one size every hole fits the next object exactly, if the allocator takes whole \
        holes; theirs placed request by request and could not know.",
    command: "larder lab run age --sizes constant,uniform",
};

/// \[FRAG\], \[BLOB\]: volume size and occupancy.
pub const FREE_POOL: Paper = Paper {
    id: "free-pool",
    title: "How many free objects a volume needs",
    source: "[FRAG] and [BLOB]: volume size and occupancy",
    found: "What mattered was the pool of free objects, not the share: 400 were enough, 40 were \
        bad. Half full, 400 GB gave 4 to 5 fragments and 40 GB 11 to 12; 97.5 % full, 400 GB were \
        worse than 40 GB at 90 %.",
    differs: "Volumes that are made in minutes are smaller, so the same pool is a larger share; \
        allocation groups and delayed allocation also change what a hole is worth.",
    command: "larder lab run volume",
};

/// \[FRAG\], \[BLOB\]: write request size.
pub const WRITE_SIZE: Paper = Paper {
    id: "write-size",
    title: "The size of a write request",
    source: "[FRAG] and [BLOB]: write request size",
    found: "The size of the requests with which an object is written changed its layout: \
        appending without a known final size was the root cause of fragmentation.",
    differs: "Systems that delay or gather see one long write whatever the program's requests; \
        where requests are flushed singly, the effect is as it was.",
    command: "larder lab run write-size",
};

/// \[DBFS\] Table 1.
pub const DBFS_SIZES: Paper = Paper {
    id: "dbfs-sizes",
    title: "File size and throughput",
    source: "[DBFS] Table 1",
    found: "One server reached 92 % of its 1 GB/s from files of 1 MB and 97 % from 10 MB; files \
        of 10 KB were bound by the processor at 59.6 MB/s written and 95.7 MB/s read. Four \
        servers wrote up to 3,450 MB/s.",
    differs: "That was a server of eight cores with a 1 GB/s array and up to 128 threads, with \
        logging of file data off; here the cores and the disk are those named below.",
    command: "larder lab run dbfs",
};

/// \[DBFS\] Table 2.
pub const DBFS_STEADY: Paper = Paper {
    id: "dbfs-steady",
    title: "Write all, read all, remove all, again",
    source: "[DBFS] Table 2",
    found: "Over 12 hours of writing, reading and removing everything, throughput fell by 1.8 % \
        (files of 1 MB) to 9.3 % (10 GB), then levelled off.",
    differs: "A run of minutes sees fewer cycles than 12 hours; removing everything leaves a \
        store nearly clean, so what remains is the noise of the machine.",
    command: "larder lab run dbfs",
};

/// \[CLUSTER\] Figures 3 to 10: insert.
pub const CLUSTER_INSERT: Paper = Paper {
    id: "cluster-insert",
    title: "PostgreSQL on filesystems: insert",
    source: "[CLUSTER] Figures 3 to 10, insert",
    found: "All filesystems were alike but NTFS, which was slow; FAT32 with 8 KB was fastest, \
        EXT2 and EXT3 with 2 KB within 0.1 % of each other.",
    differs: CLUSTER_DIFFERS,
    command: "larder lab run cluster",
};

/// \[CLUSTER\] Figures 3 to 10: select.
pub const CLUSTER_SELECT: Paper = Paper {
    id: "cluster-select",
    title: "PostgreSQL on filesystems: select",
    source: "[CLUSTER] Figures 3 to 10, select",
    found: "EXT2 with 2 KB was fastest. The best block size was 2 KB for EXT2, 1 KB for EXT3, 4 \
        KB for EXT4, 512 bytes for FAT32 and 4 KB for NTFS.",
    differs: CLUSTER_DIFFERS,
    command: "larder lab run cluster",
};

/// \[CLUSTER\] Figures 3 to 10: delete.
pub const CLUSTER_DELETE: Paper = Paper {
    id: "cluster-delete",
    title: "PostgreSQL on filesystems: delete",
    source: "[CLUSTER] Figures 3 to 10, delete",
    found: "All filesystems were alike but NTFS; FAT32 with 512 bytes was fastest.",
    differs: CLUSTER_DIFFERS,
    command: "larder lab run cluster",
};

const CLUSTER_DIFFERS: &str = "Differences of a per cent need the hundred measurements of the \
    paper, ten minutes apart; what is written to the device for each transaction repeats better \
    than time. NTFS here is a program outside of the kernel.";

/// \[CLUSTER\]: (action, filesystem, block size that was best there).
pub const CLUSTER_BEST: [(&str, &str, f64); 9] = [
    ("insert", "fat32", 8.0 * KB),
    ("insert", "ext2", 2.0 * KB),
    ("insert", "ext3", 2.0 * KB),
    ("select", "ext2", 2.0 * KB),
    ("select", "ext3", KB),
    ("select", "ext4", 4.0 * KB),
    ("select", "fat32", 512.0),
    ("select", "ntfs", 4.0 * KB),
    ("delete", "fat32", 512.0),
];

/// \[FRAG\] at age 10, objects of 10 MB: (system, least, greatest number of fragments).
pub const FRAGMENTS_AT_10: [(&str, f64, f64); 2] =
    [("NTFS, 2006", 4.0, 5.0), ("SQL Server, 2006", 35.0, 35.0)];

/// \[BLOB\]: MB/s while 512 KB objects were loaded.
pub const WRITE_AT_0: [(&str, f64); 2] = [("SQL Server, 2006", 17.7), ("NTFS, 2006", 10.1)];

/// \[FRAG\], half full, 10 MB objects: (free objects, least, greatest number of fragments).
pub const FRAGMENTS_HALF_FULL: [(f64, f64, f64); 2] = [
    (20.0 * 1024.0 / 10.0, 11.0, 12.0),
    (200.0 * 1024.0 / 10.0, 4.0, 5.0),
];

/// \[DBFS\] Table 1: (file size, write, read MB/s of one server, and of four).
pub const DBFS_TABLE: [DbfsRow; 7] = [
    (10.0 * KB, [59.6, 95.7], None),
    (100.0 * KB, [346.3, 454.2], None),
    (MB, [920.4, 931.6], Some([2897.6, 3184.6])),
    (10.0 * MB, [970.0, 970.0], Some([3193.6, 3503.1])),
    (100.0 * MB, [962.0, 962.0], Some([3334.2, 3542.2])),
    (1024.0 * MB, [970.0, 970.0], Some([3443.7, 3594.8])),
    (10240.0 * MB, [970.0, 970.0], Some([3450.1, 3634.2])),
];

/// File size; write and read MB/s of one server; the same of four.
pub type DbfsRow = (f64, [f64; 2], Option<[f64; 2]>);

/// \[DBFS\] Table 2: (file size, per cent lost before it levelled off).
pub const DBFS_DECAY: [(f64, f64); 2] = [(MB, 1.8), (10240.0 * MB, 9.3)];
