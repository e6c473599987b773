//! One state again, by its description.
//!
//! A workload of one thread that is run again writes the same bytes: descriptions hold as long as the
//! target is the same. Of several threads they hold while these do their work in the same order.

use crate::campaign::Job;
use crate::explore::{Checks, Explorer, Limits, Stop, image_of};
use crate::fault::Fault;
use crate::report::{Bad, Report};
use crate::run::Recorded;
use crate::target::Target;
use dioxide::block::record::states::{Cache, Snapshot, State};
use std::fmt;
use std::str::FromStr;

/// A state of a job, as reports name it: `1k/fua/pair:4:17:3/153:4,7`. The last part is missing where a workload failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The run.
    pub job: Job,
    /// The state; none if the workload failed.
    pub state: Option<State>,
}

impl Replay {
    /// Runs the workload, and checks the state; also the image of the state, before its recovery, if there is one.
    ///
    /// # Errors
    /// The image could not be made, the layout has no such workload, or that leaves no such state.
    pub fn run(
        &self,
        target: &dyn Target,
        checks: Checks<'_>,
        fault: Option<Fault>,
        stop: Stop<'_>,
    ) -> Result<(Report, Option<Snapshot>), String> {
        self.job.check()?;
        let start = self.job.layout.make()?;
        let recorded = match self.job.record(target, &start, fault) {
            Ok(recorded) => recorded,
            Err(what) => return Ok((self.report(self.job.words(), Err(what)), None)),
        };
        let Some(state) = &self.state else {
            return Ok((self.report(self.job.words(), Ok(())), None));
        };
        let explorer = Explorer {
            target,
            checks,
            limits: Limits::default(),
            stop,
        };
        self.judged(&explorer, &recorded, state)
    }

    fn judged(
        &self,
        explorer: &Explorer<'_>,
        recorded: &Recorded,
        state: &State,
    ) -> Result<(Report, Option<Snapshot>), String> {
        let judgement = explorer.replay(recorded, state);
        let mut report = self.report(recorded.words(), judgement.map_err(|e| e.to_string())?);
        report.states = 1;
        report.ops = recorded.ops();
        let image = image_of(recorded, state).map_err(|e| e.to_string())?;
        Ok((report, Some(image)))
    }

    fn report(&self, ops: Vec<String>, judgement: Result<(), String>) -> Report {
        let mut report = Report {
            workloads: 1,
            ..Report::default()
        };
        if let Err(what) = judgement {
            report.complain(Bad {
                replay: self.to_string(),
                ops,
                what,
            });
        }
        report
    }
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            Some(state) => write!(f, "{}/{state}", self.job),
            None => write!(f, "{}", self.job),
        }
    }
}

impl FromStr for Replay {
    type Err = String;

    fn from_str(text: &str) -> Result<Replay, String> {
        let mut words = text.splitn(4, '/');
        let mut word = || words.next().unwrap_or_default();
        let job = Job {
            layout: word().parse()?,
            cache: match word() {
                "fua" => Cache::Volatile,
                "flush" => Cache::NoFua,
                other => return Err(format!("no cache {other:?}: there are fua and flush")),
            },
            workload: word().parse()?,
        };
        let state = match words.next() {
            None => None,
            Some(state) => Some(state.parse::<State>().map_err(|e| e.to_string())?),
        };
        Ok(Replay { job, state })
    }
}
