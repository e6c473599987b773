//! A bar on standard error for what takes more than a second, or a line. Silent when that is no terminal, but for what may
//! take hours: there, a line a minute.

use crate::failure::complain;
use crate::output::Out;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(1);
const LINE_EVERY: Duration = Duration::from_secs(60);

/// Says why nothing will happen for many seconds.
pub fn waiting(why: &str) {
    if std::io::stderr().is_terminal() {
        complain(why);
    }
}

/// A bar that appears once it is worth it.
pub struct Progress {
    bar: ProgressBar,
    began: Instant,
    /// Waits until it is worth showing: asking the bar itself costs a system call.
    waits: bool,
    /// Where no bar can be: what is counted, and when it was last told.
    lines: Option<(&'static str, Instant)>,
}

impl Progress {
    /// A bar for `total` bytes; if that is 0 it is unknown.
    pub fn of_bytes(total: u64) -> Progress {
        if total == 0 {
            return Progress::new(0, "{spinner} {bytes}  {bytes_per_sec}  {elapsed}");
        }
        Progress::new(
            total,
            "{bar:40} {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left",
        )
    }

    /// A bar for steps, with a message; [`Progress::set`] tells how many they are.
    pub fn of_steps() -> Progress {
        Progress::new(0, "{bar:40} {pos}/{len}  {elapsed}  {wide_msg}")
    }

    /// The same, with a line a minute where standard error is no terminal; what the steps are called there.
    pub fn of_long_steps(what: &'static str) -> Progress {
        let mut progress = Progress::of_steps();
        if !std::io::stderr().is_terminal() {
            progress.lines = Some((what, progress.began));
        }
        progress
    }

    /// No bar at all.
    pub fn none() -> Progress {
        Progress {
            bar: ProgressBar::hidden(),
            began: Instant::now(),
            waits: false,
            lines: None,
        }
    }

    fn new(total: u64, template: &str) -> Progress {
        let style = ProgressStyle::with_template(template).expect("the template is a constant");
        let bar = ProgressBar::hidden();
        bar.set_length(total);
        bar.set_style(style);
        Progress {
            bar,
            began: Instant::now(),
            waits: true,
            lines: None,
        }
    }

    /// A count of files, of which nobody knows how many there are.
    pub fn of_count() -> Progress {
        Progress::new(0, "{spinner} {pos} files  {per_sec}  {elapsed}")
    }

    /// The same beside what is printed of each file: on a terminal, a bar would only be in the way between those lines.
    pub fn of_count_beside(out: &Out) -> Progress {
        match out.is_terminal() {
            true => Progress::none(),
            false => Progress::of_count(),
        }
    }

    /// A bar for bytes of which [`Progress::grow`] tells.
    pub fn of_files() -> Progress {
        Progress::new(
            0,
            "{bar:40} {bytes}/{total_bytes}  {bytes_per_sec}  {elapsed}",
        )
    }

    /// There is more to do than was known.
    pub fn grow(&mut self, by: u64) {
        self.bar.inc_length(by);
    }

    /// Some more is done.
    pub fn advance(&mut self, by: u64) {
        self.show_when_due();
        self.bar.inc(by);
    }

    /// So much is done, and this comes next.
    pub fn set(&mut self, done: u64, total: u64, message: String) {
        self.show_when_due();
        if let Some((what, told)) = &mut self.lines
            && told.elapsed() >= LINE_EVERY
        {
            *told = Instant::now();
            let took = self.began.elapsed().as_secs();
            complain(format!("{done} of {total} {what} in {took} s, {message}"));
        }
        self.bar.set_length(total);
        self.bar.set_position(done);
        self.bar.set_message(message);
    }

    fn show_when_due(&mut self) {
        if self.waits && self.began.elapsed() > PATIENCE {
            self.waits = false;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
