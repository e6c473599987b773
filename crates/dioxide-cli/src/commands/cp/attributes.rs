//! Owner, mode, times and extended attributes of a copy, as far as its side allows.

use super::Options;
use crate::args::{Owner, umask};
use crate::failure::{Failure, Status, complain};
use crate::location::{Facts, Held, Location, XattrFailure};
use crate::render::printable;
use dioxide::{FileType, Xattr};
use std::collections::HashSet;

/// What is kept.
pub(super) struct Attributes {
    preserve: bool,
    all_xattrs: bool,
    moving: bool,
    /// Who owns copies, whoever owns the sources.
    owner: Option<Owner>,
    umask: u16,
    /// Attributes that the other side does not take, and that was told of.
    refused: HashSet<Vec<u8>>,
}

/// Access control lists, which belong to the mode.
fn is_acl(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_")
}

/// Capabilities are those of the program that was there.
fn outlives_writing(xattr: &Xattr) -> bool {
    xattr.name != b"security.capability"
}

/// A write by anybody but root takes set-user-ID, and set-group-ID of a program.
fn after_writing(permissions: u16) -> u16 {
    let taken = match permissions & 0o010 {
        0 => 0o4000,
        _ => 0o6000,
    };
    match rustix::process::geteuid().is_root() {
        true => permissions,
        false => permissions & !taken,
    }
}

impl Attributes {
    pub(super) fn new(options: &Options) -> Attributes {
        Attributes {
            preserve: options.preserve,
            all_xattrs: options.archive,
            moving: options.moving,
            owner: options.new_files.owner(),
            umask: umask(),
            refused: HashSet::new(),
        }
    }

    /// Sets those of a copy, symlinks themselves: those of the source if they are preserved, else those of the file
    /// that it replaces, as if that had been written to; else what the user's other new files have. Attributes that find no
    /// room are told, and are in the status.
    pub(super) fn set(
        &mut self,
        source: &Location,
        facts: &Facts,
        old: Option<(&Location, &Facts)>,
        copy: &Held<'_>,
    ) -> Result<Status, Failure> {
        let is_link = facts.file_type == FileType::Symlink;
        match old {
            _ if self.preserve => {
                let kept: fn(&Xattr) -> bool = match self.all_xattrs {
                    true => |_| true,
                    false => |xattr| is_acl(&xattr.name),
                };
                let kept = self.like(source, facts, kept, copy)?;
                copy.set_times(facts.atime, facts.mtime)?;
                Ok(kept)
            }
            Some((place, old)) => {
                let mut old = old.clone();
                old.permissions = after_writing(old.permissions);
                self.like(place, &old, outlives_writing, copy)
            }
            // In an image it was made so.
            _ if is_link || matches!(copy, Held::Image(_)) => Ok(Status::Fine),
            _ => {
                self.set_plain_permissions(facts, copy)?;
                Ok(Status::Fine)
            }
        }
    }

    /// On the host: as if it had been made with those of the source.
    fn set_plain_permissions(&self, facts: &Facts, copy: &Held<'_>) -> Result<(), Failure> {
        let made = copy.examine()?.permissions;
        // A directory has it from the one that it is in.
        let inherited = match facts.is_directory() {
            true => made & 0o2000,
            false => 0,
        };
        let allowed = copy.new_permissions(self.umask)?;
        let permissions = facts.plain_permissions() & allowed | inherited;
        // Whoever is not of its group would take set-group-ID from it.
        match permissions == made {
            true => Ok(()),
            false => copy.set_permissions(permissions, false),
        }
    }

    fn like(
        &mut self,
        model: &Location,
        facts: &Facts,
        kept: fn(&Xattr) -> bool,
        copy: &Held<'_>,
    ) -> Result<Status, Failure> {
        let uid = self.owner.and_then(|owner| owner.uid);
        let gid = self.owner.and_then(|owner| owner.gid);
        let owned = copy.set_owner(uid.unwrap_or(facts.uid), gid.unwrap_or(facts.gid))?;
        // Before the mode, which may take the right to do so from this process.
        let status = self.set_xattrs(model, kept, copy)?;
        if facts.file_type == FileType::Symlink {
            return Ok(status);
        }
        let permissions = match owned {
            true => facts.permissions,
            // Rights of another user are not lent to this one.
            false => facts.permissions & 0o1777,
        };
        copy.set_permissions(permissions, self.preserve)?;
        Ok(status)
    }

    /// Attributes that need more rights than there are, or another file system, are left out: that is told once of each name.
    /// What else goes wrong is told of each file, and is trouble; if the source is to be removed, that too.
    fn set_xattrs(
        &mut self,
        model: &Location,
        kept: fn(&Xattr) -> bool,
        copy: &Held<'_>,
    ) -> Result<Status, Failure> {
        let found = model.xattrs()?;
        let mut worst = Status::Fine;
        let lacks = |stale: &[u8]| !found.iter().any(|xattr| xattr.name == stale);
        // What its directory gave it.
        for stale in copy.xattr_names()?.iter().filter(|name| is_acl(name)) {
            if lacks(stale) {
                copy.remove_xattr(stale)?;
            }
        }
        for xattr in found.iter().filter(|xattr| kept(xattr)) {
            let Err(XattrFailure { is_refusal, why }) = copy.set_xattr(xattr) else {
                continue;
            };
            let name = String::from_utf8_lossy(&xattr.name);
            let what = format!("attribute {} is not kept: {why}", printable(&name));
            if !is_refusal || self.moving {
                worst = worst.max(Failure::trouble(model, what).tell());
            } else if self.refused.insert(xattr.name.clone()) {
                complain(format_args!("{model}: warning: {what}"));
            }
        }
        Ok(worst)
    }
}
