//! What becomes of the primary that was left.

use super::elect::Promoted;
use super::hooks::{self, Hook};
use super::lock;
use super::plan::Locked;
use super::steps::{Steps, split};
use crate::out;

impl Steps {
    /// Brings the primary that was left back as a standby, by the configured program, or says how. Nobody else is touched: a server that
    /// does not answer and was no primary may have been stopped for a reason.
    pub(super) async fn rejoin(&self, promoted: &Promoted) {
        let Promoted { node, old, .. } = promoted;
        let survey = self.parts.survey().await;
        for server in survey.servers.iter().filter(|server| server.name != *node) {
            let is_old = old.as_ref() == Some(&server.name);
            match &server.state {
                Ok(state) if state.standby => {}
                // It takes itself for a primary, on an older timeline.
                Ok(state) => self.bring_back(&server.name, node, state.locked != Locked::No).await,
                Err(_) if is_old => self.bring_back(&server.name, node, false).await,
                Err(why) => self.say(format_args!(
                    "{} does not answer, and is left alone: it was not the primary, as far as is known ({why})",
                    server.name
                )),
            }
        }
    }

    async fn bring_back(&self, old: &str, node: &str, locked: bool) {
        let upstream = match self.config.failover.relays.first() {
            Some(relay) => relay.address.clone(),
            None => self.address(node),
        };
        let hook = Hook {
            program: &self.config.failover.rejoin,
            node: old,
            address: &self.address(old),
            primary: Some((node, &self.address(node))),
            upstream: Some(&upstream),
        };
        if self.config.failover.rejoin.is_empty() {
            self.say(format_args!(
                "{old} is not the primary any more, and gets neither reads nor writes. To bring it back:"
            ));
            let (primary_host, primary_port) = split(&self.address(node));
            let (host, port) = split(&upstream);
            out::line(format_args!(
                "            stop it; pg_rewind --target-pgdata=ITS_DATA --source-server='host={primary_host} \
                 port={primary_port} user={} dbname=postgres'\n            (after a clean stop that nothing was written \
                 behind, or with a new pg_basebackup, this is not needed)\n            touch ITS_DATA/standby.signal; \
                 primary_conninfo = 'host={host} port={port} …'; start it",
                self.config.failover.user
            ));
            return;
        }
        if locked && let Err(why) = lock::take_out_of_files(&self.parts, old).await {
            self.say(format_args!("the lock on {old} stays in its postgresql.auto.conf: {why}"));
        }
        match hooks::run(&hook, self.limit() * 5).await {
            Ok(()) => self.say(format_args!("{old} was brought back as a standby")),
            Err(why) => self.say(format_args!("{old} is not back: {why}")),
        }
    }
}
