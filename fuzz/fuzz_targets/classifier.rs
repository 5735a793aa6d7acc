//! The class of a text does not depend on earlier texts: a large cache, a tiny one and none agree.
#![cfg_attr(fuzzing, no_main)]

use std::cell::RefCell;

use kingpost_fuzz::fuzz_target;
use sql::{Access, Classifier, ClassifierConfig, Control};

thread_local! {
    static WARM: RefCell<Classifier> = RefCell::new(Classifier::new(ClassifierConfig::default()));
    static TINY: RefCell<Classifier> =
        RefCell::new(Classifier::new(ClassifierConfig { max_entries: 2, ..ClassifierConfig::default() }));
}

fuzz_target!(|text: &[u8]| {
    let mut none = Classifier::new(ClassifierConfig { max_entries: 0, ..ClassifierConfig::default() });
    let class = none.classify(text);
    WARM.with_borrow_mut(|warm| {
        // Once uncached, once from the cache.
        assert_eq!(warm.classify(text), class);
        assert_eq!(warm.classify(text), class);
        assert!(warm.counters().bytes <= 16 << 20);
    });
    TINY.with_borrow_mut(|tiny| {
        assert_eq!(tiny.classify(text), class);
        assert!(tiny.counters().entries <= 2);
    });
    if class.local {
        assert!(none.local_command(text).is_some());
    }
    if class.access == Access::Read {
        assert_eq!(class.control, Control::None);
        assert!(class.pins.is_empty());
    }
});
