//! Whether the write-ahead log still holds what was committed.
//!
//! SQLite reads a log up to its first damaged frame and takes what is behind it for a commit that never ended. With an
//! fsync for every commit there is at most one of these; if there are more, acknowledged ones are missing.
//! <https://sqlite.org/fileformat2.html#walformat>

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
/// What a log may say of the order of bytes in its checksums.
const LITTLE_ENDIAN: u32 = 0x377f_0682;
const BIG_ENDIAN: u32 = 0x377f_0683;

/// Whether commits are left out when the log is read; `false` where there is no log.
pub(super) fn lacks_commits(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let mut log = BufReader::with_capacity(1 << 16, file);
    let Some(header) = piece::<HEADER>(&mut log)? else { return Ok(false) };
    match Reading::begin(&header) {
        Some(reading) => reading.lacks_commits(&mut log),
        // It is on the disk before the first frame is.
        None => Ok(log.bytes().next().transpose()?.is_some()),
    }
}

/// A pass through a log.
struct Reading {
    page: usize,
    salts: [u8; 8],
    sum: Sum,
}

impl Reading {
    fn begin(header: &[u8; HEADER]) -> Option<Self> {
        let is_big = match word(header, 0) {
            BIG_ENDIAN => true,
            LITTLE_ENDIAN => false,
            _ => return None,
        };
        let mut sum = Sum { is_big, words: [0, 0] };
        sum.add(header.get(..24)?);
        let page = usize::try_from(word(header, 8)).ok().filter(|size| (512..=65536).contains(size))?;
        let salts = header.get(16..24)?.try_into().ok()?;
        (sum.words == [word(header, 24), word(header, 28)]).then_some(Self { page, salts, sum })
    }

    fn lacks_commits(mut self, log: &mut impl Read) -> io::Result<bool> {
        let (mut is_whole, mut ended) = (true, false);
        let mut page = vec![0; self.page];
        while let Some(frame) = piece::<FRAME_HEADER>(log)? {
            if !fill(log, &mut page)? {
                break;
            }
            is_whole = is_whole && self.follows(&frame, &page);
            if is_whole || frame.get(8..16) != Some(&self.salts) {
                continue;
            }
            // Behind the damage: one commit may be unfinished, and nothing follows it.
            if ended {
                return Ok(true);
            }
            ended = word(&frame, 4) != 0;
        }
        Ok(false)
    }

    fn follows(&mut self, frame: &[u8; FRAME_HEADER], page: &[u8]) -> bool {
        self.sum.add(frame.get(..8).unwrap_or_default());
        self.sum.add(page);
        frame.get(8..16) == Some(&self.salts) && self.sum.words == [word(frame, 16), word(frame, 20)]
    }
}

/// The checksum of everything so far.
struct Sum {
    is_big: bool,
    words: [u32; 2],
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        let [mut first, mut second] = self.words;
        for pair in bytes.as_chunks::<8>().0 {
            let [a, b, c, d, e, f, g, h] = *pair;
            let read = if self.is_big { u32::from_be_bytes } else { u32::from_le_bytes };
            first = first.wrapping_add(read([a, b, c, d])).wrapping_add(second);
            second = second.wrapping_add(read([e, f, g, h])).wrapping_add(first);
        }
        self.words = [first, second];
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_be_bytes(*word))
}

/// Nothing at the end of the log, even if a part of a piece is left.
fn piece<const LENGTH: usize>(log: &mut impl Read) -> io::Result<Option<[u8; LENGTH]>> {
    let mut bytes = [0; LENGTH];
    Ok(fill(log, &mut bytes)?.then_some(bytes))
}

fn fill(log: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match log.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rusqlite::Connection;

    use super::*;

    const PAGE: usize = 4096 + FRAME_HEADER;

    #[test]
    fn damage_before_a_commit_is_seen_and_an_unfinished_commit_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let (connection, log) = written(directory.path());
        let bytes = fs::read(&log).unwrap();
        assert!(!lacks_commits(&log).unwrap());
        let frames = (bytes.len() - HEADER) / PAGE;
        let commits: Vec<_> = (0..frames).filter(|frame| word(&bytes, HEADER + frame * PAGE + 4) != 0).collect();
        let &[.., last_but_one, last] = commits.as_slice() else { panic!("{frames} frames") };
        let lacks = |damaged: Vec<u8>| {
            fs::write(&log, damaged).unwrap();
            lacks_commits(&log).unwrap()
        };
        for frame in 0..=last_but_one {
            let mut flipped = bytes.clone();
            flipped[HEADER + frame * PAGE + 100] ^= 1;
            assert!(lacks(flipped), "frame {frame} of {frames}");
        }
        let mut header = bytes.clone();
        header[17] ^= 1;
        assert!(lacks(header));
        let mut under_way = bytes.clone();
        under_way[HEADER + last * PAGE + 100] ^= 1;
        assert!(!lacks(under_way), "as a power loss may leave the commit under way");
        for length in [0, 31, HEADER, HEADER + 5, bytes.len() - 1] {
            assert!(!lacks(bytes[..length].to_vec()), "cut at {length}");
        }
        drop(connection);
    }

    #[test]
    fn what_is_left_of_an_earlier_round_is_no_damage() {
        let directory = tempfile::tempdir().unwrap();
        let (connection, log) = written(directory.path());
        connection.query_row("PRAGMA wal_checkpoint(FULL)", [], |_| Ok(())).unwrap();
        connection.execute("INSERT INTO t VALUES (99, zeroblob(10))", []).unwrap();
        assert!(fs::metadata(&log).unwrap().len() > (HEADER + 6 * PAGE) as u64, "it begins anew in the same file");
        assert!(!lacks_commits(&log).unwrap());
        assert!(!lacks_commits(&directory.path().join("none")).unwrap());
    }

    /// A store whose log has several commits.
    fn written(directory: &Path) -> (Connection, std::path::PathBuf) {
        let connection = Connection::open(directory.join("a.db")).unwrap();
        connection.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (n INTEGER PRIMARY KEY, b)").unwrap();
        for number in 0..8 {
            connection.execute("INSERT INTO t VALUES (?1, zeroblob(3000))", [number]).unwrap();
        }
        (connection, directory.join("a.db-wal"))
    }
}
