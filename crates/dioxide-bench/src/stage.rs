//! What the variants of a case are run on: opens and keeps what must be open only once.

use crate::compare::{On, Variant, size_name};
use crate::image::{self, Image, NewFile};
use crate::offsets::{Order, Pattern, Run};
use crate::plan::Case;
use crate::subject::{self, Layer, PathSubject, Subject};
use crate::verify::Ledger;
use crate::{BenchOptions, DeviceChoice, Error, Result, Target, Verified};
use dioxide::Backend;
use dioxide::block::Device;
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// The file of an image that is made.
const FILE: &str = "bench.data";

/// An image, if a target needs one, and what is open of it.
pub(crate) struct Stage<'a> {
    options: &'a BenchOptions,
    pub(crate) image: Option<Image>,
    made: bool,
    /// Whether a simulated device is laid over a mapping; nothing: not known yet.
    mapped: Option<bool>,
    size: u64,
    open: Option<(Backend, Arc<dyn Device>)>,
    paths: Vec<Arc<PathSubject>>,
}

impl<'a> Stage<'a> {
    /// Makes the image, or finds the one that was given.
    pub(crate) fn open(options: &'a BenchOptions) -> Result<Self> {
        let usual = if options.quick { 256 * MIB } else { 1024 * MIB };
        let size = options.size_bytes.unwrap_or(usual) & !4095;
        if size == 0 {
            return Err(Error::Setup(
                "the file must have at least 4096 bytes".into(),
            ));
        }
        let mut stage = Stage {
            options,
            image: Image::given(options),
            made: false,
            mapped: None,
            size,
            open: None,
            paths: Vec::new(),
        };
        if stage.image.is_none() && stage.needs_image() {
            stage.make_image()?;
        }
        Ok(stage)
    }

    pub(crate) fn img_offset(&self) -> u64 {
        self.options.img_offset
    }

    fn needs_image(&self) -> bool {
        let on_path = |target: &Target| matches!(target, Target::Path(_));
        !self.options.targets.iter().all(on_path)
    }

    fn make_image(&mut self) -> Result<()> {
        let dir = image::scratch(self.options.scratch.as_deref(), self.size);
        let file = NewFile {
            name: FILE,
            bytes: self.size,
            extents: 1,
        };
        let image = Image::make(&dir, self.size + self.size / 8 + 32 * MIB, &[file])?;
        self.image = Some(image);
        self.made = true;
        match self.subject(&Layer::Bare)? {
            Some(subject) => subject.fill(),
            None => Ok(()),
        }
    }

    /// What is under a layer. The imitated device is to be the slow part: images that are made, and those that lie in memory,
    /// are mapped for it.
    fn backend(&mut self, layer: &Layer) -> Result<Backend> {
        let asked = self.options.backend;
        if asked != Backend::Auto || !matches!(layer, Layer::Sim(_)) {
            return Ok(asked);
        }
        let mapped = match (self.mapped, &self.image) {
            (Some(known), _) => known,
            (None, Some(given)) if !self.made => {
                // An image is locked by whoever writes it.
                self.open = None;
                let device = subject::open_image(given, asked, self.options.img_offset)?;
                device.geometry().inline
            }
            (None, _) => true,
        };
        self.mapped = Some(mapped);
        Ok(if mapped { Backend::Mmap } else { asked })
    }

    /// The file through a layer over the image. No other may be open through another backend.
    /// `None` if only paths are looked at.
    fn subject(&mut self, layer: &Layer) -> Result<Option<Arc<Subject>>> {
        if !self.needs_image() {
            return Ok(None);
        }
        let backend = self.backend(layer)?;
        let Some(image) = &self.image else {
            return Ok(None);
        };
        if self.open.as_ref().is_none_or(|(open, _)| *open != backend) {
            // An image is locked by whoever writes it.
            self.open = None;
            let device = subject::open_image(image, backend, self.options.img_offset)?;
            self.open = Some((backend, device));
        }
        let (_, device) = self.open.as_ref().expect("opened above");
        let name = if self.made { FILE } else { &self.options.file };
        let mount = self.options.mount_options();
        let subject = match Subject::open_with(device, layer, name, self.size, &mount) {
            // Where io_uring is not permitted there is no such meter; the image will do.
            Err(Error::Device(dioxide::block::Error::Unsupported { .. }))
                if *layer == Layer::Null && self.options.device == DeviceChoice::Auto =>
            {
                Subject::open_with(device, &Layer::Bare, name, self.size, &mount)?
            }
            other => other?,
        };
        if self.options.size_bytes.is_some() && subject.size < self.size {
            return Err(Error::Setup(format!(
                "{name} has {} bytes, {} are asked for",
                subject.file.len(),
                self.size
            )));
        }
        Ok(Some(Arc::new(subject)))
    }

    /// The variants of a case, in the order of the targets.
    pub(crate) fn variants(&mut self, case: &Case) -> Result<Vec<Variant>> {
        let subject = self.subject(&case.layer)?;
        let (order, size) = match &subject {
            Some(subject) => (self.order(case, &subject.runs, subject.size)?, subject.size),
            None => {
                let size = self.size_of_paths()?;
                let run = Run {
                    file: 0,
                    device: 0,
                    len: size,
                };
                (self.order(case, &[run], size)?, size)
            }
        };
        let order = Arc::new(order);
        let mut variants = Vec::new();
        if let Some(subject) = &subject {
            let ledger = self.ledger(case, size);
            if ledger.is_some() {
                subject.fill()?;
            }
            let ons = self.options.targets.iter().flat_map(|target| match target {
                Target::Raw => vec![On::Raw(subject.clone())],
                Target::Dioxide => {
                    let one = |&setting| On::Dioxide(subject.clone(), setting);
                    case.settings.iter().map(one).collect()
                }
                Target::Path(_) => Vec::new(),
            });
            variants.extend(ons.map(|on| variant(on, case, &order, ledger.clone())));
        }
        for target in &self.options.targets {
            if let Target::Path(path) = target {
                let file = self.path(path, size)?;
                let ledger = self.ledger(case, size);
                if ledger.is_some() {
                    file.fill(size)?;
                }
                variants.push(variant(On::Path(file), case, &order, ledger));
            }
        }
        let is_raw = |variant: &Variant| matches!(variant.on, On::Raw(_));
        let raw = variants.iter().position(is_raw);
        variants.iter_mut().for_each(|variant| variant.raw = raw);
        Ok(variants)
    }

    fn order(&self, case: &Case, runs: &[Run], size: u64) -> Result<Order> {
        let seed = self.options.seed;
        let pattern = match case.sequential {
            true => Pattern::Sequential,
            false => Pattern::Shuffled { seed },
        };
        let order = Order::new(runs, size, case.job.block_size, pattern);
        if order.file.is_empty() {
            let block = size_name(case.job.block_size);
            return Err(Error::Setup(format!(
                "no block of {block} of the file is in one piece"
            )));
        }
        Ok(order)
    }

    /// How much of every path can be used.
    fn size_of_paths(&mut self) -> Result<u64> {
        let mut size = self.size;
        for target in &self.options.targets {
            if let (Target::Path(path), None) = (target, self.options.size_bytes) {
                let file = self.path(path, 0)?;
                size = size.min(file.device.geometry().size_bytes);
            }
        }
        Ok(size)
    }

    /// A file of a mounted file system; opened once, because a writer locks it.
    fn path(&mut self, path: &Path, size: u64) -> Result<Arc<PathSubject>> {
        if let Some(open) = self.paths.iter().find(|open| open.path == path) {
            open.check_size(size)?;
            return Ok(open.clone());
        }
        // Whatever is asked for the image: a mount is driven by the best that it takes.
        let file = Arc::new(PathSubject::open(path, Backend::Auto, size)?);
        self.paths.push(file.clone());
        Ok(file)
    }

    fn ledger(&self, case: &Case, size: u64) -> Option<Arc<Ledger>> {
        self.options
            .verify
            .then(|| Arc::new(Ledger::new(size, case.job.block_size)))
    }

    /// After the rounds, every sector is what was acknowledged last: through the file, and as it
    /// lies on the device. Returns what all ledgers have found in total.
    pub(crate) fn scan(&self, variants: &[Variant]) -> Result<Option<Verified>> {
        let mut sum = Verified::default();
        let mut seen: Vec<&Arc<Ledger>> = Vec::new();
        for variant in variants {
            let Some(ledger) = &variant.ledger else {
                return Ok(None);
            };
            match &variant.on {
                On::Raw(subject) => {
                    ledger.scan_order(&variant.order, &variant.order.device, |at, buf| {
                        Ok(subject.device.read_at(at, buf)?)
                    })?
                }
                On::Dioxide(subject, _) => {
                    ledger.scan_order(&variant.order, &variant.order.file, |at, buf| {
                        Ok(subject.file.read_at(buf, at).map(|_| ())?)
                    })?
                }
                On::Path(subject) => {
                    ledger.scan_order(&variant.order, &variant.order.file, |at, buf| {
                        Ok(subject.device.read_at(at, buf)?)
                    })?
                }
            }
            if !seen.iter().any(|known| Arc::ptr_eq(known, ledger)) {
                seen.push(ledger);
            }
        }
        seen.iter()
            .for_each(|ledger| sum = sum.plus(&ledger.found()));
        Ok(Some(sum))
    }
}

fn variant(on: On, case: &Case, order: &Arc<Order>, ledger: Option<Arc<Ledger>>) -> Variant {
    Variant {
        on,
        job: case.job,
        order: order.clone(),
        ledger,
        raw: None,
    }
}
