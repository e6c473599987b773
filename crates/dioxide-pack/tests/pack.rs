//! Trees on their way between folders, archives and images, compared by what the kernel, GNU tar and
//! e2fsprogs see.

#[path = "pack/support.rs"]
mod support;

#[path = "pack/archives.rs"]
mod archives;
#[path = "pack/folders.rs"]
mod folders;
#[path = "pack/hostile.rs"]
mod hostile;
#[path = "pack/images.rs"]
mod images;
#[path = "pack/made.rs"]
mod made;
#[path = "pack/program.rs"]
mod program;
#[path = "pack/refusals.rs"]
mod refusals;
#[path = "pack/sizes.rs"]
mod sizes;

#[global_allocator]
static ALLOCATOR: dioxide_testkit::memory::Counting = dioxide_testkit::memory::Counting;
