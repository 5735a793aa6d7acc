//! The plan: objects to write next, and the files that the archive has confirmed. Decisions over plain values, without I/O.
//!
//! Nothing is remembered from one process to the next: a new one compares what it holds with what the archive has, object by object.

use std::collections::{BTreeMap, BTreeSet};

use crate::name::{BLOCK, FileName, Kind, Span, block_directory, block_path, blocks, part_directory, part_path};
use crate::store::Listed;

/// Most parts of a block before one that covers them all: a reader never has to join more.
pub const MOST_PARTS: usize = 64;

/// A segment that the relay holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The segment.
    pub file: FileName,
    /// Bytes from its start that are durable, and never change.
    pub durable: u64,
    /// True if no more will come: the timeline was left at this point.
    pub is_closed: bool,
}

/// An object to be written, or compared with the one that is there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Job {
    /// The object's kind: block or part.
    pub kind: Kind,
    /// Range of the content.
    pub span: Span,
    /// True if a listing has shown an object of that name.
    pub is_listed: bool,
}

/// Knowledge about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// A listing shows its name; its content has not been compared.
    Named,
    /// Written, or compared, here; the size is what a listing must show, 0 for any.
    Put(u64),
    /// A later listing has shown it, with that size.
    Confirmed,
}

/// Knowledge about an archive's WAL.
#[derive(Debug, Clone)]
pub struct Progress {
    segment_size: u64,
    objects: BTreeMap<(Kind, Span), Standing>,
    /// Segments whose parts have been removed since their blocks were confirmed.
    cleaned: BTreeSet<FileName>,
}

impl Progress {
    /// Starts without any knowledge.
    #[must_use]
    pub fn new(segment_size: u64) -> Progress {
        Progress { segment_size, objects: BTreeMap::new(), cleaned: BTreeSet::new() }
    }

    /// Returns the next jobs, at most `limit`: whole blocks of the oldest segments first, then, if nothing else is left, the newest WAL as parts.
    #[must_use]
    pub fn next(&self, held: &[Held], limit: usize) -> Vec<Job> {
        let mut jobs = Vec::new();
        let mut is_waiting = false;
        for held in held {
            for (range, is_whole) in self.ranges(held) {
                let span = Span { file: held.file.clone(), from: range.0, to: range.1 };
                if is_whole {
                    let standing = self.objects.get(&(Kind::Block, span.clone()));
                    if matches!(standing, None | Some(Standing::Named)) {
                        is_waiting = true;
                        jobs.push(Job { kind: Kind::Block, span, is_listed: standing.is_some() });
                    }
                } else if let Some(span) = self.next_part(&span)
                    && !is_waiting
                {
                    jobs.push(Job { kind: Kind::Part, span, is_listed: false });
                }
                if jobs.len() == limit {
                    return jobs;
                }
            }
        }
        jobs
    }

    /// Returns the part that completes the run of parts over `wanted`, which begins at a block's start.
    fn next_part(&self, wanted: &Span) -> Option<Span> {
        let run = self.run(wanted, false);
        let done = run.last().map_or(wanted.from, |part| part.to);
        if done >= wanted.to {
            return None;
        }
        let from = if run.len() >= MOST_PARTS { wanted.from } else { done };
        Some(Span { from, ..wanted.clone() })
    }

    /// Returns the parts, written here, that cover `wanted` from its start without a gap.
    fn run(&self, wanted: &Span, confirmed: bool) -> Vec<Span> {
        let counts = |standing: &Standing| match standing {
            Standing::Confirmed => true,
            Standing::Put(_) => !confirmed,
            Standing::Named => false,
        };
        let parts: Vec<Span> =
            self.parts(wanted).filter(|(_, standing)| counts(standing)).map(|(part, _)| part.clone()).collect();
        crate::name::chain(&parts, wanted.from)
    }

    /// Returns the known parts of the block of `wanted`.
    fn parts(&self, wanted: &Span) -> impl Iterator<Item = (&Span, &Standing)> {
        let least = Span { file: wanted.file.clone(), from: wanted.from, to: 0 };
        let most = Span { file: wanted.file.clone(), from: wanted.from.saturating_add(BLOCK), to: 0 };
        self.objects.range((Kind::Part, least)..(Kind::Part, most)).map(|((_, span), standing)| (span, standing))
    }

    /// Returns the durable ranges of a segment, by block; true for a whole block.
    fn ranges(&self, held: &Held) -> Vec<((u64, u64), bool)> {
        let durable = held.durable.min(self.segment_size);
        let begun = blocks(self.segment_size).take_while(|range| range.start < durable);
        begun.map(|range| ((range.start, range.end.min(durable)), range.end <= durable)).collect()
    }

    /// Notes that a job is done. `size`: the object's, 0 if it is not known.
    pub fn done(&mut self, job: &Job, size: u64) {
        let standing = self.objects.entry((job.kind, job.span.clone())).or_insert(Standing::Named);
        if *standing != Standing::Confirmed {
            *standing = Standing::Put(size);
        }
    }

    /// Returns the directories to list: those with objects that are written and not confirmed, and those of blocks nothing is known of.
    #[must_use]
    pub fn to_list(&self, held: &[Held]) -> Vec<String> {
        let mut directories = BTreeSet::new();
        for ((kind, span), standing) in &self.objects {
            if matches!(standing, Standing::Put(_)) {
                directories.insert(directory(*kind, &span.file));
            }
        }
        // Unknown: possibly archived by another relay, or by this one before it was started again.
        for job in self.next(held, usize::MAX) {
            if job.kind == Kind::Block && !job.is_listed {
                directories.insert(directory(job.kind, &job.span.file));
            }
        }
        directories.into_iter().collect()
    }

    /// Takes the listing of a directory: confirms what was written, and notes names of held segments that are there already. Returns the objects that
    /// were written and are missing, or have another size; they are written again.
    pub fn listed(&mut self, directory_listed: &str, listed: &[Listed], held: &[Held]) -> Vec<String> {
        let sizes: BTreeMap<&str, u64> = listed.iter().map(|object| (object.path.as_str(), object.size)).collect();
        let mut lost = Vec::new();
        let size = self.segment_size;
        self.objects.retain(|(kind, span), standing| {
            if directory(*kind, &span.file) != directory_listed {
                return true;
            }
            let path = path(*kind, span, size);
            match (sizes.get(path.as_str()), &*standing) {
                (Some(found), Standing::Put(put)) if *put == 0 || found == put => *standing = Standing::Confirmed,
                (Some(_), Standing::Named | Standing::Confirmed) => {}
                // Compared once more, and found to differ.
                (Some(_), Standing::Put(_)) => {
                    lost.push(path);
                    *standing = Standing::Named;
                }
                (None, _) => {
                    lost.push(path);
                    return false;
                }
            }
            true
        });
        for held in held {
            if directory(Kind::Block, &held.file) != directory_listed {
                continue;
            }
            for (range, _) in self.ranges(held).into_iter().filter(|(_, is_whole)| *is_whole) {
                let span = Span { file: held.file.clone(), from: range.0, to: range.1 };
                if sizes.contains_key(path(Kind::Block, &span, size).as_str()) {
                    self.objects.entry((Kind::Block, span)).or_insert(Standing::Named);
                }
            }
        }
        lost
    }

    /// Returns the number of the first segments in `held` that the archive has confirmed completely; the relay may remove them.
    #[must_use]
    pub fn confirmed(&self, held: &[Held]) -> usize {
        held.iter().take_while(|held| self.is_complete(held)).count()
    }

    fn is_complete(&self, held: &Held) -> bool {
        let whole = |(range, is_whole): ((u64, u64), bool)| {
            let span = Span { file: held.file.clone(), from: range.0, to: range.1 };
            if is_whole {
                return self.objects.get(&(Kind::Block, span)) == Some(&Standing::Confirmed);
            }
            self.run(&span, true).last().is_some_and(|part| part.to >= span.to)
        };
        (held.is_closed || held.durable >= self.segment_size) && self.ranges(held).into_iter().all(whole)
    }

    /// Returns the number of bytes of `held` that are not written to the archive yet.
    #[must_use]
    pub fn behind(&self, held: &[Held]) -> u64 {
        let missing = |held: &Held, (range, is_whole): ((u64, u64), bool)| {
            let span = Span { file: held.file.clone(), from: range.0, to: range.1 };
            let is_put = |standing: &Standing| *standing != Standing::Named;
            if is_whole && self.objects.get(&(Kind::Block, span.clone())).is_some_and(is_put) {
                return 0;
            }
            let parts = self.run(&span, false);
            range.1 - parts.last().map_or(range.0, |part| part.to.min(range.1))
        };
        held.iter().map(|held| self.ranges(held).into_iter().map(|range| missing(held, range)).sum::<u64>()).sum()
    }

    /// Returns the parts, written here, that a confirmed longer part covers.
    #[must_use]
    pub fn superseded(&self) -> Vec<Span> {
        let confirmed: Vec<&Span> = self
            .objects
            .iter()
            .filter(|((kind, _), standing)| *kind == Kind::Part && **standing == Standing::Confirmed)
            .map(|((_, span), _)| span)
            .collect();
        let covered = |part: &Span| {
            confirmed.iter().any(|longer| {
                longer.file == part.file && longer.from <= part.from && longer.to >= part.to && *longer != part
            })
        };
        let parts = self.objects.keys().filter(|(kind, _)| *kind == Kind::Part).map(|(_, span)| span);
        parts.filter(|part| covered(part)).cloned().collect()
    }

    /// Notes that a part was removed.
    pub fn removed(&mut self, part: &Span) {
        self.objects.remove(&(Kind::Part, part.clone()));
    }

    /// Returns a segment whose blocks are all confirmed, and whose parts have not been removed yet.
    #[must_use]
    pub fn to_clean(&self, held: &[Held]) -> Option<FileName> {
        let whole = |held: &&Held| held.durable >= self.segment_size && !self.cleaned.contains(&held.file);
        held.iter().filter(whole).find(|held| self.is_complete(held)).map(|held| held.file.clone())
    }

    /// Notes that the parts of a segment are gone.
    pub fn cleaned(&mut self, file: &FileName) {
        self.objects.retain(|(kind, span), _| *kind != Kind::Part || span.file != *file);
        self.cleaned.insert(file.clone());
    }

    /// Forgets segments that the relay holds no longer.
    pub fn forget(&mut self, held: &[Held]) {
        let names: BTreeSet<&FileName> = held.iter().map(|held| &held.file).collect();
        self.objects.retain(|(_, span), _| names.contains(&span.file));
        self.cleaned.retain(|file| names.contains(file));
    }
}

fn directory(kind: Kind, file: &FileName) -> String {
    if kind == Kind::Part { part_directory(file) } else { block_directory(file) }
}

fn path(kind: Kind, span: &Span, segment_size: u64) -> String {
    if kind == Kind::Part { part_path(span) } else { block_path(span, segment_size) }
}

#[cfg(test)]
mod tests;
