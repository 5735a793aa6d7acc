//! A text of a known shape causes no allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use sql::{Access, Classifier, ClassifierConfig};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: passes everything to the system's allocator unchanged; the counter is a const-initialised thread local without a destructor, which does not
// allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's obligations are those of `System::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_hit_does_not_allocate() {
    let mut classifier = Classifier::new(ClassifierConfig::default());
    let texts: Vec<String> = (1_000..1_100)
        .flat_map(|i| {
            [
                format!("SELECT abalance FROM pgbench_accounts WHERE aid = {i};"),
                format!("select 'value {i}' /* c */ -- d\n, \"q\", E'exact'"),
                "begin".to_owned(),
                format!("set kingpost.route = '{i}'"),
            ]
        })
        .collect();
    for text in &texts {
        classifier.classify(text.as_bytes());
    }
    let misses = classifier.counters().misses;
    let before = COUNT.with(Cell::get);
    let mut reads = 0;
    for text in &texts {
        reads += u32::from(classifier.classify(text.as_bytes()).access == Access::Read);
    }
    assert_eq!(COUNT.with(Cell::get), before);
    assert_eq!(reads, 200);
    // Once more with a text that must be parsed: the counter counts.
    classifier.classify(b"select something_new");
    assert!(COUNT.with(Cell::get) > before);
    assert_eq!(misses + 1, classifier.counters().misses);
}
