//! ext4 outside the kernel.
