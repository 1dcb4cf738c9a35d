//! Who holds which blocks: extent rows, the pages of extent maps, and what several files share.
//!
//! The extent rows are the only truth of allocation (`CATALOG-1`); what no row covers is free.

pub(crate) mod extents;
pub(crate) mod grants;
pub(crate) mod holders;
pub(crate) mod map_pages;
pub(crate) mod pieces;
