//! How files are that a command makes.

use super::Owner;
use super::mode::umask;
use crate::location::Facts;
use clap::Args;
use dioxide::NewFile;

/// Owner and mode of new files.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct NewFiles {
    /// Who owns what is made in an image: UID, UID:GID or :GID; by default whoever runs dioxide
    #[arg(long, value_name = "OWNER")]
    owner: Option<Owner>,
}

impl NewFiles {
    /// What was asked for.
    pub fn owner(&self) -> Option<Owner> {
        self.owner
    }

    /// With these permissions but for those of the umask.
    pub fn with(&self, permissions: u16) -> NewFile {
        self.exactly(permissions).umask(umask())
    }

    /// With these permissions, whatever the umask is.
    pub fn exactly(&self, permissions: u16) -> NewFile {
        let uid = self.owner.and_then(|owner| owner.uid);
        let gid = self.owner.and_then(|owner| owner.gid);
        NewFile::new(permissions).owner(
            uid.unwrap_or_else(|| rustix::process::geteuid().as_raw()),
            gid.unwrap_or_else(|| rustix::process::getegid().as_raw()),
        )
    }

    /// As a copy of a file with these facts begins.
    pub fn like(&self, facts: &Facts) -> NewFile {
        self.with(facts.plain_permissions())
    }
}
