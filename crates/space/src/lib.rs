//! Space: which blocks of a database are free, and where new content goes.
//!
//! Content is allocated once, at its final size, by global best fit; that, and holding 1/32 of the
//! capacity back, is what keeps objects in one piece however often they are replaced.
//!
//! # Words
//! *Reserve*: to set blocks aside, counted but without a place. *Allocate*: to turn a reservation
//! into extents. *Retire*: to drop the last reference; here, to put an extent into *quarantine*
//! until that is durable. *Revive*: to take it back into use, where it is. *Release* (the end of
//! reclaim): to make it free again. *Hole*: a maximal run of free blocks in one allocation group
//! (AG). *Soft region*: a part of a hole, held in memory for a stream of unknown length. *Held
//! back*: the part of the capacity only privileged work may use. *Closed*: the end of a segment
//! that is being emptied; *set aside*: free blocks there. A *known* AG has a *summary*, how much of
//! it is in use; a *loaded* one is known hole by hole.
//!
//! # The life of a block
//! ```text
//!            reserve (a count)                    quarantine
//!   free ───────────────────────▶ allocate ──▶ allocated ──▶ quarantined
//!    ▲ │  ◀── forfeit                              ◀── revive     │
//!    │ └── close_from ──▶ set aside ──▶ reopen: free │ shrink_segment: gone
//!    └──────────────────────────── release ───────────────────────┘
//!   summarize_ag, load_ag: what the catalog says of a whole AG
//! ```
//!
//! # Invariants
//! * `SPACE-1` allocated + quarantined + free + set aside = capacity.
//! * `SPACE-2` No block is in two states.
//! * `SPACE-3` Neither an extent nor a hole crosses from one AG into the next.
//! * `SPACE-4` An ordinary reservation leaves the held back blocks unreserved.
//! * `SPACE-5` A quarantined block is never handed out.
//! * `SPACE-6` reserved ≤ free, over all AGs, so an allocation that its reservation covers cannot
//!   fail once the AGs that [`Space::find_wanted_ag`] names are loaded. Only
//!   [`Space::summarize_ag`] can break this, and then says so.
//! * `SPACE-7` A soft region is free: it never causes [`NoSpace`], and never a split that stealing
//!   it avoids.
//! * `SPACE-8` An allocation of known size takes the smallest hole that fits, of equal ones the one
//!   of the lowest address. It is split only when no hole fits. This holds among the loaded AGs:
//!   where they fit into memory, all that have free blocks.
//! * `SPACE-9` In a closed part of a segment nothing is allocated. What is free there is set aside:
//!   neither available nor reserved, until the segment is reopened or shrinks.
//! * `SPACE-10` An AG is unloaded only if the catalog can give it back: not with uncommitted
//!   allocations, a soft region, or a closed part that begins inside of it. Loaded AGs take at most
//!   192 MiB, by estimate, but for what one allocation needs loaded at once.
//!
//! # What is in memory
//! Of every AG, counts (about 80 bytes). Of a loaded one, its holes in two trees, by start and by
//! length, about 64 bytes per hole with the index over all of them. The owner reads: it enters the
//! summaries when it opens a database, and loads the AGs that [`Space::find_wanted_ag`] names
//! before it allocates. Where all AGs with free blocks fit into memory, these are all; else a
//! window of the most promising, and more where no hole fits. What is in quarantine is a count: the
//! catalog knows where.
//!
//! # Concurrency and recovery
//! No I/O, no clock, no locks: the owner serialises the calls. Nothing here is ever stored. On open
//! the owner enters what the catalog has in use, and free is the complement; so a crash leaks
//! nothing.
//!
//! # Cost
//! O(log n) per operation and piece; where no hole fits, plus O(streams · log holes). Measured by
//! `examples/scale.rs`.

mod address;
mod ag;
mod ags;
mod compact;
mod cover;
mod error;
mod free_blocks;
mod reservation;
mod space;
mod streams;

pub use compact::{CompactPlan, Move, hole_score, plan_hole, plan_joins};
pub use cover::Cover;
pub use error::{NoSpace, SpaceError};
pub use larder_format as format;
pub use reservation::{Purpose, Reservation};
pub use space::{AgSummary, Placement, Space, Target};
pub use streams::StreamId;
