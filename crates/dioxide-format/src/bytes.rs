//! Bytes that are seldom more than so many.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Bytes that lie in the value itself if they are at most `N`, and need no memory of their own then.
#[derive(Clone)]
pub struct Bytes<const N: usize>(Place<N>);

#[derive(Clone)]
enum Place<const N: usize> {
    Inside(Aligned<N>, usize),
    Outside(Box<[u8]>),
}

/// Where checksums go through them by words.
#[derive(Clone, Copy)]
#[repr(align(8))]
struct Aligned<const N: usize>([u8; N]);

impl<const N: usize> Bytes<N> {
    /// So many zeros.
    pub fn zeroed(len: usize) -> Self {
        Self(match len <= N {
            true => Place::Inside(Aligned([0; N]), len),
            false => Place::Outside(vec![0; len].into()),
        })
    }
}

impl<const N: usize> From<&[u8]> for Bytes<N> {
    fn from(bytes: &[u8]) -> Self {
        let mut copy = Self::zeroed(bytes.len());
        copy.copy_from_slice(bytes);
        copy
    }
}

impl<const N: usize> Deref for Bytes<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Place::Inside(bytes, len) => &bytes.0[..*len],
            Place::Outside(bytes) => bytes,
        }
    }
}

impl<const N: usize> DerefMut for Bytes<N> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Place::Inside(bytes, len) => &mut bytes.0[..*len],
            Place::Outside(bytes) => bytes,
        }
    }
}

impl<const N: usize, B: Deref<Target = [u8]>> PartialEq<B> for Bytes<N> {
    fn eq(&self, other: &B) -> bool {
        **self == **other
    }
}

impl<const N: usize> Eq for Bytes<N> {}

impl<const N: usize> fmt::Debug for Bytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_what_they_were_made_of_wherever_they_lie() {
        for len in [0, 1, 3, 4, 5, 100] {
            let made: Vec<u8> = (1..=len).collect();
            let mut bytes = Bytes::<4>::from(&made[..]);
            assert_eq!(bytes, made);
            let same = bytes.clone();
            assert_eq!(bytes, same);
            if let Some(first) = bytes.first_mut() {
                *first += 1;
                assert_ne!(bytes, same);
            }
            assert_eq!(same, made);
        }
    }
}
