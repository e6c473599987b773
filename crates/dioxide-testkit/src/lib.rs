//! Placeholder header, replaced in this change.
