//! temp
use dioxide_bench::*;
struct P;
impl Progress for P {
    fn step(&mut self, d: u64, t: u64, w: &str) {
        if std::env::var("V").is_ok() {
            eprintln!("{d}/{t} {w}");
        }
    }
}
fn main() {
    let mut o = BenchOptions {
        quick: true,
        ..Default::default()
    };
    for a in std::env::args().skip(1) {
        let (k, v) = a.split_once('=').unwrap_or((&a, ""));
        match k {
            "e" => o.experiments = v.split(',').map(|x| x.parse().unwrap()).collect(),
            "t" => o.targets = v.split(',').map(|x| x.parse().unwrap()).collect(),
            "b" => o.backend = v.parse().unwrap(),
            "d" => o.device = v.parse().unwrap(),
            "p" => o.policies = v.split(',').map(|x| x.parse().unwrap()).collect(),
            "bs" => o.block_sizes = v.split(',').map(|x| x.parse().unwrap()).collect(),
            "qd" => o.iodepths = v.split(',').map(|x| x.parse().unwrap()).collect(),
            "j" => o.numjobs = Some(v.parse().unwrap()),
            "mix" => o.mix = Some(v.parse().unwrap()),
            "r" => o.runs = Some(v.parse().unwrap()),
            "ms" => o.runtime = Some(std::time::Duration::from_millis(v.parse().unwrap())),
            "size" => o.size_bytes = Some(v.parse::<u64>().unwrap() << 20),
            "s" => o.simple = Some(v.parse().unwrap()),
            "image" => o.image = Some(v.into()),
            "scratch" => o.scratch = Some(v.into()),
            "verify" => o.verify = true,
            "full" => o.quick = false,
            _ => panic!("{a}"),
        }
    }
    match run(&o, &mut P) {
        Ok(r) => {
            for row in &r.rows {
                println!(
                    "{:20} {:8} {:12} {:8} {:3} {:12} {:>7} qd{:3} j{} {:>9.0} iops {:>7.0} MiB/s lat {:>8.1} p99 {:>8.1} cpu {:>7.0} ratio {:?} seed {:?} [{:.0}..{:.0}]",
                    row.experiment,
                    row.target,
                    row.policy.as_deref().unwrap_or("-"),
                    row.completion.as_deref().unwrap_or("-"),
                    row.simple.as_deref().unwrap_or("-"),
                    row.rw,
                    row.block_size,
                    row.iodepth,
                    row.numjobs,
                    row.iops,
                    row.bw_MiBps,
                    row.lat_us.mean,
                    row.lat_us.p99,
                    row.cpu_ns_per_io,
                    row.ratio_to_raw.map(|x| (x * 1000.0).round() / 1000.0),
                    row.seed_iops,
                    row.spread.min,
                    row.spread.max
                );
            }
            for c in &r.checks {
                println!(
                    "{:20} {:50} {:20} {} {} {:?}",
                    c.experiment,
                    c.what,
                    c.target,
                    c.measured,
                    if c.pass { "PASS" } else { "MISS" },
                    c.note
                );
            }
            if let Ok(f) = std::env::var("HTML") {
                std::fs::write(f, r.to_html()).unwrap();
            }
            if std::env::var("TABLE").is_ok() {
                print!("{}", r.to_table());
            }
            if std::env::var("JSON").is_ok() {
                print!("{}", r.to_json_lines());
            }
        }
        Err(e) => {
            eprintln!("error: {e}");
            std::process::exit(2)
        }
    }
}
