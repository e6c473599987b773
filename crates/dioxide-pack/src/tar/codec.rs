//! Compression: found out by the first bytes when reading, asked for when writing.
//!
//! All of it is Rust: archives come from anywhere. Rejected: the C library for zstd, several times as
//! fast both ways, whose memory safety would be ours to vouch for.

use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use ruzstd::encoding::{CompressionLevel, compress};
use std::io::{self, BufRead, Read, Write};

/// Most memory that unpacking xz may take, in KiB: what `xz -9` needs.
const XZ_MEMORY_KIB: u32 = 80 << 10;
/// Longest window of zstd: what `zstd -d` takes without being asked.
const ZSTD_WINDOW_BYTES: u64 = 128 << 20;
/// How much is one frame of what is written. Frames are compressed each on its own.
const FRAME_BYTES: usize = 8 << 20;

/// How an archive is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip.
    Gzip,
    /// zstd.
    Zstd,
    /// xz: only read.
    Xz,
}

impl Compression {
    /// What the name of an archive says: none if it is no archive's. `.tar`, `.tar.gz` or `.tgz`,
    /// `.tar.zst` or `.tzst`, `.tar.xz` or `.txz`.
    pub fn of_name(name: &[u8]) -> Option<Compression> {
        let endings: [(&[u8], Compression); 7] = [
            (b".tar", Compression::None),
            (b".tar.gz", Compression::Gzip),
            (b".tgz", Compression::Gzip),
            (b".tar.zst", Compression::Zstd),
            (b".tzst", Compression::Zstd),
            (b".tar.xz", Compression::Xz),
            (b".txz", Compression::Xz),
        ];
        let found = endings.iter().find(|(ending, _)| name.ends_with(ending));
        found.map(|&(_, compression)| compression)
    }
}

const GZIP_MAGIC: &[u8] = &[0x1F, 0x8B];
/// So many bytes tell how a file is compressed.
pub(super) const MAGIC_BYTES: u64 = 6;

/// What begins with these bytes, [`MAGIC_BYTES`] or all that there are; an error names what is known and not done.
pub(super) fn detect(start: &[u8]) -> Result<Compression, &'static str> {
    match start {
        [0x1F, 0x8B, ..] => Ok(Compression::Gzip),
        [0x28, 0xB5, 0x2F, 0xFD, ..] | [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..] => Ok(Compression::Zstd),
        [0xFD, b'7', b'z', b'X', b'Z', 0, ..] => Ok(Compression::Xz),
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31 | 0x17, ..] => Err("bzip2"),
        [b'L', b'Z', b'I', b'P', ..] => Err("lzip"),
        [0x04, 0x22, 0x4D, 0x18, ..] => Err("lz4"),
        [0x1F, 0x9D, ..] => Err("compress"),
        _ => Ok(Compression::None),
    }
}

/// A reader of what `input` holds uncompressed.
pub(super) fn decoder(compression: Compression, input: impl BufRead + 'static) -> Box<dyn Read> {
    match compression {
        Compression::None => Box::new(input),
        Compression::Gzip => Box::new(GzReader::new(input)),
        Compression::Zstd => Box::new(ZstdReader::new(input)),
        Compression::Xz => Box::new(lzma_rust2::XzReader::new_mem_limit(
            input,
            true,
            XZ_MEMORY_KIB,
        )),
    }
}

/// What follows an archive and is no archive.
fn more_behind(kind: &str) -> io::Error {
    io::Error::other(format!(
        "{kind}: something behind its end that is no part of it"
    ))
}

/// Not of who reads it.
fn is_of_the_data(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof)
}

/// A member of a file, whose magic was read before the rest.
type Member<R> = GzDecoder<io::Chain<&'static [u8], R>>;

/// All members of a file in turn. Zeros behind the last one are none, up to the end of the file: tapes are filled up so.
struct GzReader<R> {
    /// None at the end.
    member: Option<Member<R>>,
}

impl<R: BufRead> GzReader<R> {
    /// Of what begins with [`GZIP_MAGIC`].
    fn new(input: R) -> GzReader<R> {
        let nothing: &[u8] = &[];
        GzReader {
            member: Some(GzDecoder::new(nothing.chain(input))),
        }
    }
}

impl<R: BufRead> Read for GzReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let got = member.read(buf)?;
            if got > 0 || buf.is_empty() {
                return Ok(got);
            }
            let Some(member) = self.member.take() else {
                break;
            };
            let (_, mut input) = member.into_inner().into_inner();
            if skip_zeros(&mut input)? {
                // What has it is a member, though it may be cut off in its header.
                skip_magic(&mut input)?;
                self.member = Some(GzDecoder::new(GZIP_MAGIC.chain(input)));
            }
        }
        Ok(0)
    }
}

fn skip_magic(input: &mut impl Read) -> io::Result<()> {
    let mut magic = [0; GZIP_MAGIC.len()];
    match input.read_exact(&mut magic) {
        Ok(()) if magic == *GZIP_MAGIC => Ok(()),
        Err(error) if !is_of_the_data(&error) => Err(error),
        _ => Err(more_behind("gzip")),
    }
}

/// Whether something follows; zeros must be all that does.
fn skip_zeros(input: &mut impl BufRead) -> io::Result<bool> {
    let mut zeros = false;
    loop {
        let bytes = input.fill_buf()?;
        let len = bytes.len();
        match bytes.iter().all(|byte| *byte == 0) {
            true if len == 0 => return Ok(false),
            true => zeros = true,
            false if zeros || bytes[0] == 0 => {
                return Err(more_behind("gzip"));
            }
            false => return Ok(true),
        }
        input.consume(len);
    }
}

/// An end that comes too soon is told as such.
fn failed(error: FrameDecoderError) -> io::Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(one) = cause {
        let io = one.downcast_ref::<io::Error>();
        if io.is_some_and(|io| io.kind() == io::ErrorKind::UnexpectedEof) {
            return io::ErrorKind::UnexpectedEof.into();
        }
        cause = one.source();
    }
    io::Error::other(error)
}

/// All frames of a file in turn, checksums verified.
struct ZstdReader<R> {
    input: R,
    decoder: FrameDecoder,
    in_frame: bool,
    is_first: bool,
}

impl<R: BufRead> ZstdReader<R> {
    fn new(input: R) -> ZstdReader<R> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(ZSTD_WINDOW_BYTES);
        ZstdReader {
            input,
            decoder,
            in_frame: false,
            is_first: true,
        }
    }

    fn next_frame(&mut self) -> io::Result<()> {
        use FrameDecoderError::ReadFrameHeaderError as Header;
        let is_first = std::mem::take(&mut self.is_first);
        match self.decoder.init(&mut self.input) {
            Err(Header(ReadFrameHeaderError::BadMagicNumber(_))) if !is_first => {
                Err(more_behind("zstd"))
            }
            Err(Header(ReadFrameHeaderError::MagicNumberReadError(error)))
                if !is_first && is_of_the_data(&error) =>
            {
                Err(more_behind("zstd"))
            }
            Err(Header(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                let skipped =
                    io::copy(&mut (&mut self.input).take(length.into()), &mut io::sink())?;
                match skipped == u64::from(length) {
                    true => Ok(()),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                }
            }
            begun => {
                self.in_frame = true;
                begun.map_err(failed)
            }
        }
    }

    fn end_frame(&mut self) -> io::Result<()> {
        self.in_frame = false;
        let stored = self.decoder.get_checksum_from_data();
        if stored.is_some() && stored != self.decoder.get_calculated_checksum() {
            return Err(io::Error::other("zstd: bad checksum"));
        }
        Ok(())
    }
}

impl<R: BufRead> Read for ZstdReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame {
                if self.input.fill_buf()?.is_empty() {
                    return Ok(0);
                }
                self.next_frame()?;
            } else if self.decoder.can_collect() > 0 {
                return self.decoder.read(buf);
            } else if self.decoder.is_finished() {
                self.end_frame()?;
            } else {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder
                    .decode_blocks(&mut self.input, one)
                    .map_err(failed)?;
            }
        }
    }
}

/// A compressed file that is written, and ended in the end.
pub(super) trait Encoder: Write {
    /// Writes what is left.
    fn finish(&mut self) -> io::Result<()>;
}

/// # Errors
/// For what is only read.
pub(super) fn encoder(
    compression: Compression,
    out: impl Write + 'static,
) -> Result<Box<dyn Encoder>, &'static str> {
    match compression {
        Compression::None => Ok(Box::new(Plain(out))),
        // No name and no time in the header, so that it is the same each time.
        Compression::Gzip => Ok(Box::new(GzEncoder::new(
            out,
            flate2::Compression::default(),
        ))),
        Compression::Zstd => Ok(Box::new(ZstdWriter {
            out,
            frame: Vec::new(),
        })),
        Compression::Xz => Err("xz is only read"),
    }
}

struct Plain<W>(W);

impl<W: Write> Write for Plain<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl<W: Write> Encoder for Plain<W> {
    fn finish(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl<W: Write> Encoder for GzEncoder<W> {
    fn finish(&mut self) -> io::Result<()> {
        self.try_finish()?;
        self.get_mut().flush()
    }
}

struct ZstdWriter<W> {
    out: W,
    frame: Vec<u8>,
}

impl<W: Write> ZstdWriter<W> {
    fn write_frame(&mut self) -> io::Result<()> {
        let mut packed = Vec::new();
        compress(&self.frame[..], &mut packed, CompressionLevel::Fastest);
        self.frame.clear();
        self.out.write_all(&packed)
    }
}

impl<W: Write> Write for ZstdWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(FRAME_BYTES - self.frame.len());
        self.frame.extend_from_slice(&bytes[..count]);
        if self.frame.len() == FRAME_BYTES {
            self.write_frame()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W: Write> Encoder for ZstdWriter<W> {
    fn finish(&mut self) -> io::Result<()> {
        if !self.frame.is_empty() {
            self.write_frame()?;
        }
        self.out.flush()
    }
}
