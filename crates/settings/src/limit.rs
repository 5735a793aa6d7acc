//! Limits that a zero in the file switches off.

use std::time::Duration;

use serde::{Deserializer, Serializer};

use crate::key::Kind;
use crate::value::Setting;

/// A time limit; `"0s"` in the file means never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OrNever(Option<Duration>);

impl OrNever {
    /// No time limit.
    pub const NEVER: OrNever = OrNever(None);

    /// Creates a limit; zero means never.
    #[must_use]
    pub const fn after(time: Duration) -> OrNever {
        if time.is_zero() { OrNever(None) } else { OrNever(Some(time)) }
    }

    /// Returns the time; None: never.
    #[must_use]
    pub const fn get(self) -> Option<Duration> {
        self.0
    }
}

impl From<Duration> for OrNever {
    fn from(time: Duration) -> OrNever {
        OrNever::after(time)
    }
}

impl Setting for OrNever {
    const KIND: Kind = Kind::Duration { zero: true };

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Duration::read(from).map(OrNever::after)
    }

    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.unwrap_or_default().write(to)
    }

    fn toml(&self) -> Option<String> {
        self.0.unwrap_or_default().toml()
    }

    fn text(&self) -> String {
        self.0.unwrap_or_default().text()
    }
}

/// A limit on a number; 0 in the file means that there is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limit(Option<usize>);

impl Limit {
    /// No limit.
    pub const NONE: Limit = Limit(None);

    /// Creates a limit; 0 means that there is none.
    #[must_use]
    pub const fn of(most: usize) -> Limit {
        if most == 0 { Limit(None) } else { Limit(Some(most)) }
    }

    /// Returns the greatest number; None: there is no limit.
    #[must_use]
    pub const fn get(self) -> Option<usize> {
        self.0
    }
}

impl From<usize> for Limit {
    fn from(most: usize) -> Limit {
        Limit::of(most)
    }
}

impl Setting for Limit {
    const KIND: Kind = usize::KIND;

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        usize::read(from).map(Limit::of)
    }

    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.unwrap_or_default().write(to)
    }

    fn toml(&self) -> Option<String> {
        self.0.unwrap_or_default().toml()
    }
}
