//! Values that a connection has only while it is active.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::thread::LocalKey;

/// Maximum number of spare boxes of a thread.
const MOST_KEPT: usize = 1024;

/// Unused boxes.
pub(in crate::core) type Spare<T> = RefCell<Vec<Box<T>>>;

/// Takes an unused box of this thread, or makes one.
pub(in crate::core) fn take_spare<T: Default>(spare: &'static LocalKey<Spare<T>>) -> Box<T> {
    spare.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Keeps a box for the next use on this thread, unless there are many.
pub(in crate::core) fn keep_spare<T>(spare: &'static LocalKey<Spare<T>>, unused: Box<T>) {
    spare.with_borrow_mut(|spare| {
        if spare.len() < MOST_KEPT {
            spare.push(unused);
        }
    });
}

/// A value that is `T::IDLE`, and takes the room of one pointer, until it is changed.
pub(in crate::core) struct PooledBox<T: Idle>(Option<Box<T>>);

/// A value that a [`PooledBox`] can hold.
pub(in crate::core) trait Idle: Sized + Copy + 'static {
    /// The value of an inactive connection.
    const IDLE: Self;
    /// Returns the same value, as a reference.
    fn idle() -> &'static Self;
    /// Returns this thread's spare boxes: a connection that becomes active repeatedly allocates no memory.
    fn spare() -> &'static LocalKey<Spare<Self>>;
}

impl<T: Idle> PooledBox<T> {
    pub(in crate::core) const fn new() -> PooledBox<T> {
        PooledBox(None)
    }

    /// Takes the value out and leaves `T::IDLE`.
    pub(in crate::core) fn take(&mut self) -> T {
        let value = **self;
        self.reset();
        value
    }

    /// Sets the value to `T::IDLE`.
    pub(in crate::core) fn reset(&mut self) {
        if let Some(used) = self.0.take() {
            keep_spare(T::spare(), used);
        }
    }
}

impl<T: Idle + fmt::Debug> fmt::Debug for PooledBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Idle> Deref for PooledBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(value) => value,
            None => T::idle(),
        }
    }
}

impl<T: Idle> DerefMut for PooledBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_with(|| {
            let mut fresh = T::spare().with_borrow_mut(Vec::pop).unwrap_or_else(|| Box::new(T::IDLE));
            *fresh = T::IDLE;
            fresh
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq)]
    struct Work(u64);

    impl Idle for Work {
        const IDLE: Work = Work(7);
        fn idle() -> &'static Work {
            &Work::IDLE
        }
        fn spare() -> &'static LocalKey<Spare<Work>> {
            thread_local!(static SPARE: Spare<Work> = const { RefCell::new(Vec::new()) });
            &SPARE
        }
    }

    #[test]
    fn it_is_idle_again_after_reset_and_its_box_is_used_again() {
        let spare = || Work::spare().with_borrow(Vec::len);
        let (mut one, mut other) = (PooledBox::<Work>::new(), PooledBox::<Work>::new());
        assert_eq!((*one, one.take(), spare()), (Work(7), Work(7), 0), "who did nothing has no box to give back");
        *one = Work(1);
        assert_eq!((*one, *other), (Work(1), Work(7)));
        assert_eq!((one.take(), *one, spare()), (Work(1), Work(7), 1));
        other.deref_mut();
        assert_eq!((*other, spare()), (Work(7), 0), "a used box begins anew");
    }
}
