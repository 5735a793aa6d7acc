//! The return of the replaced primary as a standby.

use ::relay::Order;

use super::engine::Promoted;
use super::failover_run::FailoverRun;
use super::hooks::{self, Hook};
use super::lock;
use super::plan::{Locked, Survey};
use process::address::split;
use process::terminal;

impl FailoverRun {
    /// Brings the replaced primary back as a standby, by the configured program, or prints how to. No other server is touched: a server that does not
    /// answer and was no primary may have been stopped for a reason.
    pub(super) async fn rejoin(&self, before: &Survey, promoted: &Promoted) {
        let Promoted { node, old, .. } = promoted;
        let survey = self.clients.survey_again(before).await;
        for server in survey.servers.iter().filter(|server| server.name != *node) {
            let is_old = old.as_ref() == Some(&server.name);
            match &server.state {
                Ok(state) if state.standby => {}
                // The server still runs as a primary, on an older timeline.
                Ok(state) => self.bring_back(&server.name, promoted, state.locked != Locked::No).await,
                Err(_) if is_old => self.bring_back(&server.name, promoted, false).await,
                Err(why) => self.say(format_args!(
                    "{} does not answer, and is left alone: it was not the primary, as far as is known ({why})",
                    server.name
                )),
            }
        }
    }

    async fn bring_back(&self, old: &str, promoted: &Promoted, locked: bool) {
        let (primary, upstream) = (self.address(&promoted.node), self.upstream(promoted).await);
        // Until its first checkpoint the control file of a promoted server has the old timeline, and pg_rewind finds nothing to do.
        if let Err(why) = self.clients.checkpoint(&promoted.node).await {
            self.say(format_args!("{} made no checkpoint, which pg_rewind needs: {why}", promoted.node));
        }
        if self.config.failover.rejoin.is_empty() {
            self.say(format_args!("{old} is not the primary any more, and gets neither reads nor writes"));
            terminal::line(match &*self.config.failover.rejoined_by {
                "" => self.recipe(&primary, &upstream, promoted.timeline),
                who => format!("  {who} brings it back as a standby"),
            });
            return;
        }
        if locked && let Err(why) = lock::take_out_of_files(&self.clients, old).await {
            self.say(format_args!("the lock on {old} stays in its postgresql.auto.conf: {why}"));
        }
        let hook = Hook {
            program: &self.config.failover.rejoin,
            node: old,
            address: &self.address(old),
            primary: Some((&promoted.node, &primary)),
            upstream: Some(&upstream),
            timeline: Some(promoted.timeline),
            ..Hook::default()
        };
        match hooks::run(&hook, self.limit() * 5).await {
            Ok(_) => self.say(format_args!("{old} was brought back as a standby")),
            Err(why) => self.say(format_args!("{old} is not back: {why}")),
        }
    }

    /// Returns the address that a standby should receive from: a relay that follows the new primary, or else the new primary.
    async fn upstream(&self, promoted: &Promoted) -> String {
        for relay in &self.config.failover.relays {
            let standing = self.clients.order(&relay.name, Order::Look).await;
            if standing.is_ok_and(|standing| standing.timeline >= promoted.timeline) {
                return relay.address.clone();
            }
        }
        let first = self.config.failover.relays.first();
        first.map_or_else(|| self.address(&promoted.node), |relay| relay.address.clone())
    }

    /// Returns instructions for a person on the server's machine.
    fn recipe(&self, primary: &str, upstream: &str, timeline: u32) -> String {
        let (primary_host, primary_port) = split(primary, "5432");
        let (host, port) = split(upstream, "5432");
        let user = &self.config.failover.user;
        let source = format!("host={primary_host} port={primary_port} user={user} dbname=postgres");
        format!(
            "  To bring it back as a standby, on its machine, with DATA for its data directory:\n\
             \x20   stop it\n\
             \x20   sed -i /kingpost_switchover/d DATA/postgresql.auto.conf\n\
             \x20   OWN=$(mktemp -d); cp -p DATA/*.conf $OWN\n\
             \x20   psql '{source}' -c CHECKPOINT\n\
             \x20   pg_rewind --target-pgdata=DATA --source-server='{source}'\n\
             \x20   find DATA/pg_wal -maxdepth 1 -type f -name '????????????????????????' ! -name '{timeline:08X}*' -delete\n\
             \x20   cp -p $OWN/*.conf DATA/; rm -r $OWN\n\
             \x20   touch DATA/standby.signal\n\
             \x20   echo \"primary_conninfo = 'host={host} port={port} …'\" >> DATA/postgresql.auto.conf\n\
             \x20   start it\n\
             \x20 After a clean stop by the configured program only the last three are needed. If its log says then that a WAL segment has been \
             removed, make it again with pg_basebackup."
        )
    }
}
