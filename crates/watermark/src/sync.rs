//! Synchronization primitives: std's, or loom's under `--cfg loom`, where a test explores every interleaving.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard, OnceLock};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use model::{Mutex, MutexGuard, OnceLock, Sleeper};

use std::sync::{PoisonError, TryLockError};
#[cfg(not(loom))]
use std::time::Instant;

/// Sleep of a thread: a call of `wake` ends it, or the next one. It may end spuriously.
#[cfg(not(loom))]
#[derive(Debug, Clone)]
pub(crate) struct Sleeper(std::thread::Thread);

#[cfg(not(loom))]
impl Sleeper {
    /// Returns the sleeper of this thread.
    pub(crate) fn here() -> Sleeper {
        Sleeper(std::thread::current())
    }

    pub(crate) fn is_here(&self) -> bool {
        self.0.id() == std::thread::current().id()
    }

    pub(crate) fn wake(&self) {
        self.0.unpark();
    }

    /// Sleeps, until `deadline` at most. Must be called where `is_here`.
    pub(crate) fn sleep(&self, deadline: Option<Instant>) {
        match deadline {
            None => std::thread::park(),
            Some(deadline) => std::thread::park_timeout(deadline.saturating_duration_since(Instant::now())),
        }
    }
}

/// Waits for the lock. No guarded value can be left inconsistent by a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the lock if it is free; never waits.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(loom)]
mod model {
    use std::ops::{Deref, DerefMut};
    use std::sync::{Arc, LockResult, TryLockResult};
    use std::time::Instant;

    use loom::sync::Notify;

    use super::{AtomicBool, Ordering, PoisonError, TryLockError, lock};

    /// A mutex for `try_lock`. Loom switches to no other thread before the release of its own mutex: `try_lock` would never find it held, unless its
    /// holder writes what others read. This mutex also writes its state.
    #[derive(Debug)]
    pub(crate) struct Mutex<T> {
        held: AtomicBool,
        inner: loom::sync::Mutex<T>,
    }

    #[derive(Debug)]
    pub(crate) struct MutexGuard<'a, T> {
        held: &'a AtomicBool,
        inner: loom::sync::MutexGuard<'a, T>,
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex { held: AtomicBool::new(false), inner: loom::sync::Mutex::new(value) }
        }

        pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            self.held.swap(true, Ordering::AcqRel);
            Ok(MutexGuard { held: &self.held, inner })
        }

        pub(crate) fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
            // An atomic read-modify-write never returns an old value.
            if self.held.fetch_or(false, Ordering::AcqRel) {
                return Err(TryLockError::WouldBlock);
            }
            let Ok(inner) = self.inner.try_lock() else { return Err(TryLockError::WouldBlock) };
            self.held.swap(true, Ordering::AcqRel);
            Ok(MutexGuard { held: &self.held, inner })
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.inner
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.inner
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            self.held.swap(false, Ordering::AcqRel);
        }
    }

    /// Replacement of loom's own `park`, whose `unpark` also ends a wait for a mutex or for the end of a thread.
    #[derive(Debug, Clone)]
    pub(crate) struct Sleeper(Arc<Notify>);

    impl Sleeper {
        pub(crate) fn here() -> Sleeper {
            Sleeper(Arc::new(Notify::new()))
        }

        pub(crate) fn is_here(&self) -> bool {
            true
        }

        pub(crate) fn wake(&self) {
            self.0.notify();
        }

        pub(crate) fn sleep(&self, deadline: Option<Instant>) {
            assert_eq!(deadline, None, "loom has no clock");
            self.0.wait();
        }
    }

    /// std's, with an atomic that shows loom which threads may know that it is set.
    pub(crate) struct OnceLock<T> {
        set: AtomicBool,
        setting: Mutex<()>,
        value: std::sync::OnceLock<T>,
    }

    impl<T> OnceLock<T> {
        pub(crate) fn new() -> OnceLock<T> {
            OnceLock { set: AtomicBool::new(false), setting: Mutex::new(()), value: std::sync::OnceLock::new() }
        }

        pub(crate) fn get(&self) -> Option<&T> {
            if self.set.load(Ordering::Acquire) { self.value.get() } else { None }
        }

        pub(crate) fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
            if let Some(value) = self.get() {
                return value;
            }
            let setting = lock(&self.setting);
            let value = self.value.get_or_init(init);
            self.set.store(true, Ordering::Release);
            drop(setting);
            value
        }
    }
}
