//! Arguments of `kingpost config from-…`.
#![allow(missing_docs, reason = "a doc comment on a type of arguments would be printed as help")]

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub struct FromDatabasesArgs {
    /// The program's file, usually pgbouncer.ini or pgcat.toml
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub how: Translation,
    #[command(flatten)]
    pub which: WhichDatabases,
}

#[derive(Debug, Args)]
pub struct FromPgdogArgs {
    /// PgDog's file, usually pgdog.toml
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// PgDog's users; without it users.toml beside the file
    #[arg(long, value_name = "FILE")]
    pub users: Option<PathBuf>,
    #[command(flatten)]
    pub how: Translation,
    #[command(flatten)]
    pub which: WhichDatabases,
}

#[derive(Debug, Args)]
pub struct FromPgpoolArgs {
    /// pgpool-II's file, usually pgpool.conf
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// pgpool-II's rules; without it pool_hba.conf beside the file. Read with enable_pool_hba = on only
    #[arg(long, value_name = "FILE")]
    pub hba: Option<PathBuf>,
    /// pgpool-II's passwords; without it what the file names, or pool_passwd beside it
    #[arg(long, value_name = "FILE")]
    pub passwords: Option<PathBuf>,
    #[command(flatten)]
    pub how: Translation,
}

/// Arguments of every translation.
#[derive(Debug, Args)]
pub struct Translation {
    /// File to write, which must not exist; standard output if not given. It may hold passwords.
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Setting to leave out, as the error names it (`databases.shop.connect_query`), by its last part, or by the table above it; may be given several times
    #[arg(long, value_name = "KEY")]
    pub ignore: Vec<String>,
    /// User that watches the servers; without it one that the files name for such things, else a user of clients with a password, else postgres. A
    /// password that the files do not have comes by KINGPOST__CLUSTER__PASSWORD
    #[arg(long, value_name = "NAME")]
    pub probe_user: Option<String>,
    /// Writes also what `kingpost check` finds wrong, because the files that it names are on another machine
    #[arg(long)]
    pub no_check: bool,
}

/// For programs whose files name databases.
#[derive(Debug, Args)]
pub struct WhichDatabases {
    /// Database to translate; may be given several times. Without it all are
    #[arg(long, value_name = "NAME")]
    pub database: Vec<String>,
    /// The servers that the databases lead to are one primary and its replicas
    #[arg(long)]
    pub same_cluster: bool,
}
