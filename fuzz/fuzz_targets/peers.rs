//! Messages between registry nodes: no bytes cause a panic, and a decoded commit can be encoded again.
#![cfg_attr(fuzzing, no_main)]

use kingpost_fuzz::fuzz_target;
use registry::peers::wire::{Message, committed};
use registry::store::Interner;

fuzz_target!(|body: &[u8]| {
    let mut interner = Interner::default();
    if let Ok(Message::Committed { epoch, revision, records }) = Message::read(body, &mut interner) {
        let again = committed(epoch, revision, &records);
        assert!(Message::read(&again, &mut interner).is_ok());
    }
});
