//! Which blocks a round touches, and in which order.
//!
//! The order is computed before the round and streamed: a random number per request would cost as
//! much as the file system adds. All targets get the same blocks in the same order; for `raw` each
//! is translated to where it lies on the device. Blocks that are not in one piece there are left
//! out for all targets alike.
//!
//! All jobs share one order and start at different places of it, equally far apart.

/// Entries of an order at most. A larger file is sampled evenly.
const MOST_BLOCKS: u64 = 1 << 22;

/// A piece of a file that is in one piece on the device. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) file: u64,
    pub(crate) device: u64,
    pub(crate) len: u64,
}

/// How blocks follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Ascending.
    Sequential,
    /// Each block once in random order, then over again.
    Shuffled {
        /// The same seed gives the same order.
        seed: u64,
    },
}

/// Blocks in the order in which they are touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// Offsets in the file.
    pub(crate) file: Box<[u64]>,
    /// The same blocks as offsets on the device.
    pub(crate) device: Box<[u64]>,
}

impl Order {
    /// The blocks of `block_size` bytes among the first `size` bytes of the file.
    pub(crate) fn new(runs: &[Run], size: u64, block_size: u32, pattern: Pattern) -> Order {
        let stride = (size / u64::from(block_size)).div_ceil(MOST_BLOCKS).max(1);
        let (mut file, mut device): (Vec<u64>, Vec<u64>) = blocks(runs, size, block_size)
            .step_by(stride as usize)
            .unzip();
        if let Pattern::Shuffled { seed } = pattern {
            shuffle(&mut file, seed);
            shuffle(&mut device, seed);
        }
        Order {
            file: file.into(),
            device: device.into(),
        }
    }

    /// Where job number `job` of `jobs` starts.
    pub(crate) fn start(&self, job: u32, jobs: u32) -> usize {
        self.file.len() * job as usize / jobs as usize
    }
}

/// Ascending (file offset, device offset) of the blocks that are in one piece.
fn blocks(runs: &[Run], size: u64, block_size: u32) -> impl Iterator<Item = (u64, u64)> {
    let block = u64::from(block_size);
    runs.iter().flat_map(move |run| {
        let end = (run.file + run.len).min(size);
        let first = run.file.next_multiple_of(block);
        let count = end.saturating_sub(first) / block;
        (0..count)
            .map(move |n| first + n * block)
            .map(|at| (at, at - run.file + run.device))
    })
}

/// Fisher and Yates's.
pub(crate) fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut random = Random::new(seed);
    for last in (1..items.len()).rev() {
        items.swap(last, random.below(last as u64 + 1) as usize);
    }
}

/// A small generator of random numbers (splitmix64): the same on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `limit`, nearly evenly.
    #[inline]
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }
}

/// Spreads the bits of a number.
#[inline]
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: [Run; 2] = [
        Run {
            file: 0,
            device: 1 << 20,
            len: 10_240,
        },
        Run {
            file: 10_240,
            device: 9 << 20,
            len: 100_000,
        },
    ];

    #[test]
    fn sequential_order_translates_and_leaves_out_what_is_torn() {
        let order = Order::new(&RUNS, 24_576, 4096, Pattern::Sequential);
        assert_eq!(*order.file, [0, 4096, 12_288, 16_384, 20_480]);
        assert_eq!(order.device[1], (1 << 20) + 4096);
        assert_eq!(order.device[2], (9 << 20) + 2048);
    }

    #[test]
    fn shuffled_order_is_a_permutation_with_the_same_translation() {
        let sorted = Order::new(&RUNS, 1 << 30, 512, Pattern::Sequential);
        let shuffled = Order::new(&RUNS, 1 << 30, 512, Pattern::Shuffled { seed: 7 });
        assert_ne!(sorted.file, shuffled.file);
        let pairs = |order: &Order| {
            let mut pairs: Vec<_> = order
                .file
                .iter()
                .copied()
                .zip(order.device.iter().copied())
                .collect();
            pairs.sort_unstable();
            pairs
        };
        assert_eq!(pairs(&sorted), pairs(&shuffled));
    }

    #[test]
    fn order_of_the_same_seed_is_the_same() {
        let order = |seed| Order::new(&RUNS, 65_536, 512, Pattern::Shuffled { seed });
        assert_eq!(order(3), order(3));
        assert_ne!(order(3), order(4));
    }

    #[test]
    fn huge_file_is_sampled_evenly() {
        let run = Run {
            file: 0,
            device: 0,
            len: 1 << 40,
        };
        let order = Order::new(&[run], 1 << 40, 4096, Pattern::Sequential);
        assert_eq!(order.file.len(), 1 << 22);
        assert_eq!(order.file[1], 64 * 4096);
    }

    #[test]
    fn jobs_start_equally_far_apart() {
        let order = Order::new(&RUNS, 1 << 30, 512, Pattern::Sequential);
        let n = order.file.len();
        assert_eq!(
            [0, 1, 2, 3].map(|job| order.start(job, 4)),
            [0, n / 4, n / 2, n * 3 / 4]
        );
    }
}
