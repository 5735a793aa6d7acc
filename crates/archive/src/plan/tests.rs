#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const SIZE: u64 = 1 << 20;

fn file(number: u64) -> FileName {
    FileName::parse(&format!("0000000100000000{number:08X}")).unwrap()
}

fn held(number: u64, durable: u64) -> Held {
    Held { file: file(number), durable, is_closed: false }
}

/// Objects of an archive, by path, with their sizes.
#[derive(Default)]
struct Fake(BTreeMap<String, u64>);

impl Fake {
    fn list(&self, of: &str) -> Vec<Listed> {
        let below =
            self.0.iter().filter(|(path, _)| path.rsplit_once('/').is_some_and(|(directory, _)| directory == of));
        below.map(|(path, size)| Listed { path: path.clone(), size: *size }).collect()
    }

    fn look(&self, progress: &mut Progress, held: &[Held]) -> usize {
        let directories = progress.to_list(held);
        directories.iter().map(|directory| progress.listed(directory, &self.list(directory), held).len()).sum()
    }

    fn run(&mut self, progress: &mut Progress, held: &[Held], limit: usize) -> Vec<Job> {
        let jobs = progress.next(held, limit);
        for job in &jobs {
            self.0.insert(path(job.kind, &job.span, progress.segment_size), job.span.bytes());
            progress.done(job, job.span.bytes());
        }
        jobs
    }
}

#[test]
fn whole_segments_first_then_the_newest_in_parts() {
    let (mut fake, mut progress) = (Fake::default(), Progress::new(SIZE));
    let all = [held(1, SIZE), held(2, SIZE), held(3, 5000)];
    assert_eq!(progress.behind(&all), 2 * SIZE + 5000);
    let jobs = fake.run(&mut progress, &all, 1);
    assert_eq!((jobs[0].kind, &jobs[0].span.file), (Kind::Block, &file(1)));
    assert_eq!(progress.confirmed(&all), 0, "written, not seen in a listing");
    assert_eq!(fake.look(&mut progress, &all), 0);
    assert_eq!(progress.confirmed(&all), 1);
    assert_eq!(fake.run(&mut progress, &all, 9).len(), 1, "no part while a whole segment waits");
    let jobs = fake.run(&mut progress, &all, 9);
    assert_eq!((jobs.len(), jobs[0].kind, jobs[0].span.to), (1, Kind::Part, 5000));
    assert_eq!(progress.behind(&all), 0);
    assert_eq!(progress.next(&all, 9), []);

    // Only the new bytes.
    let all = [held(1, SIZE), held(2, SIZE), held(3, 9000)];
    assert_eq!(fake.run(&mut progress, &all, 9)[0].span, Span { file: file(3), from: 5000, to: 9000 });
    fake.look(&mut progress, &all);
    assert_eq!(progress.confirmed(&all), 2, "what is still written stays");

    // It becomes whole, and its parts go.
    let all = [held(1, SIZE), held(2, SIZE), held(3, SIZE)];
    assert_eq!(fake.run(&mut progress, &all, 9)[0].kind, Kind::Block);
    fake.look(&mut progress, &all);
    assert_eq!(progress.confirmed(&all), 3);
    for number in [1, 2, 3] {
        assert_eq!(progress.to_clean(&all), Some(file(number)));
        progress.cleaned(&file(number));
    }
    assert_eq!((progress.to_clean(&all), progress.behind(&all)), (None, 0));
    progress.forget(&all[2..]);
    assert_eq!(progress.objects.len(), 1);
}

#[test]
fn names_that_are_there_are_compared_before_they_count() {
    let (mut fake, mut first) = (Fake::default(), Progress::new(SIZE));
    let all = [held(1, SIZE), held(2, SIZE)];
    fake.run(&mut first, &all, 9);
    // The relay is started again.
    let mut progress = Progress::new(SIZE);
    fake.look(&mut progress, &all);
    assert_eq!(progress.confirmed(&all), 0);
    let jobs = progress.next(&all, 9);
    assert!(jobs.len() == 2 && jobs.iter().all(|job| job.is_listed));
    for job in &jobs {
        progress.done(job, 0);
    }
    fake.look(&mut progress, &all);
    assert_eq!(progress.confirmed(&all), 2);
}

#[test]
fn what_a_listing_lacks_is_written_again() {
    let (mut fake, mut progress) = (Fake::default(), Progress::new(SIZE));
    let all = [held(1, SIZE), held(2, SIZE)];
    fake.run(&mut progress, &all, 9);
    fake.0.remove(&block_path(&Span { file: file(1), from: 0, to: SIZE }, SIZE));
    *fake.0.get_mut(&block_path(&Span { file: file(2), from: 0, to: SIZE }, SIZE)).unwrap() += 1;
    assert_eq!(fake.look(&mut progress, &all), 2);
    assert_eq!(progress.confirmed(&all), 0);
    let jobs = progress.next(&all, 9);
    assert_eq!(jobs.iter().map(|job| job.is_listed).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn the_end_of_a_timeline_that_was_left() {
    let (mut fake, mut progress) = (Fake::default(), Progress::new(SIZE));
    let all = [Held { is_closed: true, ..held(1, 7000) }, held(2, 0)];
    fake.run(&mut progress, &all, 9);
    assert_eq!(progress.confirmed(&all), 0);
    fake.look(&mut progress, &all);
    assert_eq!(progress.confirmed(&all), 1);
    assert_eq!(progress.to_clean(&all), None, "its parts are all there is");
    assert_eq!(progress.confirmed(&[Held { is_closed: true, ..held(1, 0) }]), 1, "nothing of it is WAL");
}

#[test]
fn many_parts_become_one() {
    let (mut fake, mut progress) = (Fake::default(), Progress::new(SIZE));
    let mut most = 0;
    for step in 1..=200 {
        let all = [held(1, step * 1000)];
        fake.run(&mut progress, &all, 9);
        fake.look(&mut progress, &all);
        for part in progress.superseded() {
            fake.0.remove(&part_path(&part));
            progress.removed(&part);
        }
        most = most.max(fake.0.len());
        assert_eq!(progress.behind(&all), 0);
    }
    assert_eq!(most, MOST_PARTS);
}

#[test]
fn a_large_segment_is_several_blocks() {
    let size = 64 << 20;
    let mut progress = Progress::new(size);
    let all = [held(1, (40 << 20) + 1)];
    let jobs = progress.next(&all, 9);
    let spans: Vec<(Kind, u64, u64)> = jobs.iter().map(|job| (job.kind, job.span.from, job.span.to)).collect();
    assert_eq!(spans, [(Kind::Block, 0, BLOCK), (Kind::Block, BLOCK, 2 * BLOCK)]);
    for job in &jobs {
        progress.done(job, 1);
    }
    let job = &progress.next(&all, 9)[0];
    assert_eq!((job.kind, job.span.from, job.span.to), (Kind::Part, 2 * BLOCK, (40 << 20) + 1));
}

proptest! {
    /// A relay that writes, is started again at any time, and has an archive that loses requests: what counts as confirmed is in the archive, whole,
    /// and at rest everything is.
    #[test]
    fn confirmed_is_there(steps in prop::collection::vec((0_u8..6, 1_u64..700_000), 1..80)) {
        let (mut fake, mut progress) = (Fake::default(), Progress::new(SIZE));
        let mut all = vec![held(1, 0)];
        for (what, amount) in steps {
            match what {
                0 | 1 => {
                    let mut left = amount;
                    while left > 0 {
                        let last = all.last_mut().unwrap();
                        let here = left.min(SIZE - last.durable);
                        last.durable += here;
                        left -= here;
                        if last.durable == SIZE {
                            let number = all.len() as u64 + 1;
                            all.push(held(number, 0));
                        }
                    }
                }
                2 => {
                    fake.run(&mut progress, &all, 2);
                }
                // The answers are lost.
                3 => {
                    fake.run(&mut progress.clone(), &all, 2);
                }
                4 => {
                    fake.look(&mut progress, &all);
                }
                _ => progress = Progress::new(SIZE),
            }
            for held in &all[..progress.confirmed(&all)] {
                let path = block_path(&Span { file: held.file.clone(), from: 0, to: SIZE }, SIZE);
                prop_assert!(fake.0.contains_key(&path));
            }
        }
        for _ in 0..all.len() * 2 + 4 {
            fake.run(&mut progress, &all, 3);
            fake.look(&mut progress, &all);
        }
        prop_assert_eq!(progress.next(&all, 9), []);
        prop_assert_eq!(progress.behind(&all), 0);
        prop_assert_eq!(progress.confirmed(&all), all.iter().filter(|held| held.durable == SIZE).count());
    }
}
