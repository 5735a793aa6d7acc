//! pgpool-II's pgpool.conf, pool_hba.conf and pool_passwd.

mod conf;
mod keys;
mod nodes;
mod passwords;
#[cfg(test)]
mod tests;
mod translate;

pub(super) use translate::{Files, plan};
