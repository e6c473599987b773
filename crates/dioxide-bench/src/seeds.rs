//! Figures from the mails, and the devices they imply.
//!
//! The figures are measurements that were published on the kernel's mailing lists:
//!
//! | Experiment | By |
//! |---|---|
//! | mixed-randrw | Joseph Qi, linux-ext4, 18 September 2019 |
//! | unaligned-overwrite | Brian Foster, linux-ext4, 14 March 2023 |
//! | aio-completion | Jeremy Bongio, linux-ext4, 21 June 2023 |
//! | simple-read, simple-read-sweep | Fengnan Chang, linux-fsdevel, 29 June 2026 (the sweep: ext4, io_uring) |
//!
//! # The devices
//! **mixed-randrw.** Eight threads, one request each, reads and writes in turn. Under `ilock+` nobody
//! waits for a lock, so its two latencies are the device's (4k: 245.5 and 12.1 µs; 8 ÷ their sum is
//! 31,056 a second, the mail has 30,921), up to 64k. From 512k on they are mostly time spent
//! waiting for the device's bandwidth: reads and writes together are level at 1,204 MiB/s (512k) and
//! 1,220 MiB/s (1M). The device's own latencies are taken from the row `w/` there: under `parallel` a
//! reader holds off all writers for its whole latency and a writer everybody, on average two
//! requests of each kind follow each other, so two writes and one read take 4 ÷ the row's rate.
//! A write alone takes little more than its share of the bandwidth.
//!
//! **unaligned-overwrite.** Before the change one write was in flight at a time: 4,328 a second, so one
//! takes 231 µs. After it, 801,000 a second whatever the depth: the device's or the guest's ceiling.
//!
//! **aio-completion.** 4k at depth 64 reached 305,000 a second, larger requests 2,450 MiB/s. 64 ÷ 305,000
//! is 210 µs at most; 80 µs is what such disks have.
//!
//! **simple-read.** 3.2 million a second raw; at depth 1, 19,000 a second, so 52 µs.

use crate::Experiment;
use dioxide::block::sim::SimSpec;

/// One published figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) experiment: Experiment,
    /// As the report names the variant: a policy, a completion mode, `simple on`, `simple off`, `raw`.
    pub(crate) variant: &'static str,
    pub(crate) block_size: u32,
    pub(crate) iodepth: u32,
    /// Requests a second; in a mix, reads (writes are within 1 % of them).
    pub(crate) iops: f64,
}

const K: u32 = 1024;

/// Block sizes of mixed-randrw.
pub(crate) const MIXED_SIZES: [u32; 5] = [4 * K, 16 * K, 64 * K, 512 * K, 1024 * K];

/// Reads a second of each policy at each of these sizes. (`pre49` is the mail's w/o, `parallel` w/.)
const MIXED: [(&str, [f64; 5]); 7] = [
    ("parallel", [7_724.0, 3_685.0, 1_865.0, 767.0, 476.0]),
    ("pre49", [29_478.0, 13_650.0, 6_606.0, 1_152.0, 580.0]),
    (
        "pre49+nolock",
        [30_862.0, 13_904.0, 6_678.0, 1_208.0, 600.0],
    ),
    ("ilock", [7_491.0, 3_502.0, 1_653.0, 578.0, 385.0]),
    ("ilocknew", [7_547.0, 3_582.0, 1_678.0, 604.0, 412.0]),
    ("ilock+", [30_921.0, 13_921.0, 6_682.0, 1_204.0, 611.0]),
    ("ilocknew+", [30_792.0, 13_871.0, 6_672.0, 1_207.0, 611.0]),
];

const UNALIGNED: [(&str, f64); 2] = [("v5.6", 4_328.0), ("v6.4", 801_000.0)];

/// MiB a second at 4k, 8k, 12k, 16k.
const AIO: [(&str, [f64; 4]); 2] = [
    ("deferred", [1_004.0, 2_074.0, 2_309.0, 2_465.0]),
    ("inline", [1_193.0, 2_258.0, 2_346.0, 2_446.0]),
];

const SIMPLE: [(&str, f64); 3] = [
    ("raw", 3_200_000.0),
    ("simple off", 1_920_000.0),
    ("simple on", 2_190_000.0),
];

/// Depth, off, on.
const SWEEP: [(u32, f64, f64); 4] = [
    (1, 18_836.0, 18_880.0),
    (64, 568_193.0, 600_625.0),
    (128, 570_998.0, 602_148.0),
    (256, 572_052.0, 602_536.0),
];

/// All figures.
pub(crate) fn figures() -> Vec<Figure> {
    let mut all = Vec::new();
    let mut add = |experiment, variant, block_size, iodepth, iops| {
        all.push(Figure {
            experiment,
            variant,
            block_size,
            iodepth,
            iops,
        });
    };
    for (policy, row) in MIXED {
        for (size, iops) in MIXED_SIZES.into_iter().zip(row) {
            add(Experiment::MixedRandrw, policy, size, 1, iops);
        }
    }
    for (policy, iops) in UNALIGNED {
        add(Experiment::UnalignedOverwrite, policy, 2 * K, 256, iops);
    }
    for (mode, row) in AIO {
        for (size, mib) in [4 * K, 8 * K, 12 * K, 16 * K].into_iter().zip(row) {
            add(
                Experiment::AioCompletion,
                mode,
                size,
                64,
                mib * f64::from(1 << 20) / f64::from(size),
            );
        }
    }
    for (variant, iops) in SIMPLE {
        add(Experiment::SimpleRead, variant, 4 * K, 512, iops);
    }
    for (depth, off, on) in SWEEP {
        add(Experiment::SimpleReadSweep, "simple off", 4 * K, depth, off);
        add(Experiment::SimpleReadSweep, "simple on", 4 * K, depth, on);
    }
    all
}

/// The figure for a place, if the mail has one.
pub(crate) fn figure(
    experiment: Experiment,
    variant: &str,
    block_size: u32,
    iodepth: u32,
) -> Option<f64> {
    let wanted = |f: &Figure| {
        (f.experiment, f.variant, f.block_size, f.iodepth)
            == (experiment, variant, block_size, iodepth)
    };
    figures().into_iter().find(wanted).map(|f| f.iops)
}

/// The device that the mail's figures imply; `None` for experiments that no mail describes.
pub(crate) fn device(experiment: Experiment, block_size: u32) -> Option<SimSpec> {
    let spec = match experiment {
        Experiment::MixedRandrw => match block_size / K {
            0..16 => "read=245500ns,write=12100ns,bw=1220MiB/s",
            16..64 => "read=552600ns,write=20300ns,bw=1220MiB/s",
            64..512 => "read=1142us,write=52300ns,bw=1220MiB/s",
            512..1024 => "read=1700us,write=450us,bw=1204MiB/s",
            _ => "read=2500us,write=850us,bw=1220MiB/s",
        },
        Experiment::UnalignedOverwrite => "latency=231us,iops=801k",
        Experiment::AioCompletion => "latency=80us,iops=305k,bw=2450MiB/s",
        Experiment::SimpleRead | Experiment::SimpleReadSweep => "latency=52us,iops=3.2M",
        Experiment::Rows | Experiment::Grow | Experiment::Names => return None,
    };
    Some(spec.parse().expect("the specifications are constants"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_can_be_parsed() {
        for experiment in Experiment::SEEDS {
            for size in MIXED_SIZES.into_iter().chain([512, 2 * K]) {
                assert!(device(experiment, size).is_some());
            }
        }
    }

    #[test]
    fn figures_are_found_by_place() {
        assert_eq!(
            figure(Experiment::MixedRandrw, "ilock+", 4096, 1),
            Some(30_921.0)
        );
        assert_eq!(
            figure(Experiment::SimpleRead, "raw", 4096, 512),
            Some(3_200_000.0)
        );
        assert_eq!(figure(Experiment::SimpleRead, "raw", 8192, 512), None);
    }

    #[test]
    fn seed_ratio_of_unaligned_overwrites_is_185() {
        let iops = |policy| figure(Experiment::UnalignedOverwrite, policy, 2048, 256).unwrap();
        assert_eq!((iops("v6.4") / iops("v5.6")).round(), 185.0);
    }
}
