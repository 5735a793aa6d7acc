//! Replication connections: `replication=true` or `replication=database` in the startup packet.
//!
//! Such a client gets a server connection of its own, in no pool and under no pool's limit. Its startup parameters go to the server as they are.
//! While there is no primary it waits for one, as other clients do. After both logins, bytes are passed on unread in both directions.

use topology::NodeId;
use wire::{Sqlstate, message};

use super::client::{At, LookedUp, Phase};
use super::login::begins_as_role;
use super::overdue::{Awaited, Overdue};
use crate::core::memory::Kind;
use crate::core::pool::{Pool, PoolKey};
use crate::core::server::Server;
use crate::core::{Core, Effect, over};

/// The startup parameter by which a client names the node; the primary without it.
pub(super) const NODE: &str = "kingpost.node";

/// Kind of a replication connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Replication {
    /// Replication of the whole server.
    Physical,
    /// Replication of one database.
    Logical,
}

/// Startup packet of a replication client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::core) struct Tunnel {
    pub(in crate::core) replication: Replication,
    /// The database, if the client named one.
    pub(in crate::core) database: Option<String>,
    /// The further startup parameters.
    pub(in crate::core) parameters: Vec<(String, String)>,
    /// The name of the node; `None`: the primary.
    pub(in crate::core) node: Option<String>,
}

impl Replication {
    /// Reads the value of the startup parameter `replication`: `Ok(None)` is no. `Err`: it is none that PostgreSQL takes.
    pub(super) fn read(value: &str) -> Result<Option<Replication>, ()> {
        match value.to_ascii_lowercase().as_str() {
            "database" => Ok(Some(Replication::Logical)),
            "true" | "on" | "yes" | "1" | "t" | "y" => Ok(Some(Replication::Physical)),
            "" | "false" | "off" | "no" | "0" | "f" | "n" => Ok(None),
            _ => Err(()),
        }
    }

    /// As the startup packet to a server has it.
    fn value(self) -> &'static str {
        match self {
            Replication::Physical => "true",
            Replication::Logical => "database",
        }
    }

    /// As `SHOW CLIENTS` has it.
    pub(in crate::core) fn name(self) -> &'static str {
        match self {
            Replication::Physical => "physical",
            Replication::Logical => "logical",
        }
    }
}

impl Tunnel {
    /// Returns the parameters of the startup packet to the server.
    pub(in crate::core) fn startup<'a>(&'a self, pool: &'a Pool) -> Vec<(&'a str, &'a str)> {
        let (on_server, user) = pool.database.on_servers(&pool.key.database, &pool.key.user);
        let database = match self.replication {
            Replication::Logical => Some(on_server),
            Replication::Physical => self.database.as_deref(),
        };
        let own = [("user", Some(user)), ("database", database), ("replication", Some(self.replication.value()))];
        let own = own.into_iter().filter_map(|(name, value)| Some((name, value?)));
        own.chain(self.parameters.iter().map(|(name, value)| (&**name, &**value))).collect()
    }
}

impl Core {
    /// Connects a client that has authenticated, and wants to replicate, to a server.
    pub(super) fn begin_replication(&mut self, c: usize, key: &PoolKey, mut tunnel: Tunnel) {
        let database = self.settings.database(&key.database);
        let logical = tunnel.replication == Replication::Logical;
        let of_user = self.settings.user(&key.user).is_some_and(|user| user.replication);
        let of_database = logical && database.is_some_and(|database| database.replication);
        if !of_user && !of_database {
            let text = format!(
                "user {:?} may not open replication connections through the proxy: its entry in [[proxy.users]] needs replication = true",
                key.user
            );
            return self.fail_login(c, Sqlstate::INSUFFICIENT_PRIVILEGE, &text);
        }
        if logical {
            let Some(database) = database else {
                let text = format!("database {:?} is not among the proxy's databases", key.database);
                return self.fail_login(c, Sqlstate::INVALID_CATALOG_NAME, &text);
            };
            // Such a connection takes SQL as well.
            if let Err(text) = begins_as_role(database, key, &mut tunnel.parameters) {
                return self.fail_login(c, Sqlstate::INVALID_AUTHORIZATION, &text);
            }
            if self.paused.is_disabled(&key.database) {
                return self.database_is_disabled(c, &key.database);
            }
        }
        let node = self.replicates_from(&tunnel);
        if let (None, Some(name)) = (node, &tunnel.node) {
            let text = format!("{NODE}: no node is called {name:?}, or it can't be reached");
            return self.fail_login(c, Sqlstate::CANNOT_CONNECT_NOW, &text);
        }
        self.room_for_pool(key);
        if let Err(text) = self.enter(c, key) {
            return self.fail_login(c, Sqlstate::TOO_MANY_CONNECTIONS, &text);
        }
        let p = self.pool(key);
        let looked_up = self.clients[c].looked_up != LookedUp::No;
        let pool = &mut self.pools[p];
        pool.clients += 1;
        pool.tunnels += 1;
        pool.looked_up |= looked_up;
        self.clients[c].pool = p;
        match node {
            Some(node) => self.open_tunnel(c, node, Box::new(tunnel)),
            None => self.awaits_primary(c, Box::new(tunnel)),
        }
    }

    /// Has a client that wants to replicate wait for a primary.
    fn awaits_primary(&mut self, c: usize, tunnel: Box<Tunnel>) {
        let client = &mut self.clients[c];
        if let Phase::Login(login) = &mut client.phase {
            login.tunnel = Some(tunnel);
        }
        client.since = self.now;
        self.awaiting_primary.push_back(client.token);
        self.start_waiting(c);
        if self.awaiting_primary.len() > self.clients.len() {
            // Some have left.
            let waiting = std::mem::take(&mut self.awaiting_primary);
            self.awaiting_primary = waiting.into_iter().filter(|&token| self.is_client(token)).collect();
        }
    }

    /// Connects the clients that have waited for a primary, if there is one now.
    pub(in crate::core) fn primary_found(&mut self) {
        let Some(node) = self.view.primary else { return };
        for token in std::mem::take(&mut self.awaiting_primary) {
            if !self.is_client(token) {
                continue;
            }
            let c = token.index();
            self.stop_waiting(c);
            if let Phase::Login(login) = &mut self.clients[c].phase
                && let Some(tunnel) = login.tunnel.take()
            {
                self.open_tunnel(c, node, tunnel);
            }
        }
    }

    /// Refuses clients that have waited for a primary for too long.
    pub(in crate::core) fn expire_awaiting_primary(&mut self) {
        let limit = self.settings.no_primary_timeout;
        while let Some(&token) = self.awaiting_primary.front() {
            if !self.is_client(token) {
                self.awaiting_primary.pop_front();
                continue;
            }
            let c = token.index();
            if !over(self.clients[c].since, limit, self.now) {
                return;
            }
            self.awaiting_primary.pop_front();
            self.stop_waiting(c);
            self.metrics.wait_timeouts.add(1);
            let key = self.pools[self.clients[c].pool].key.clone();
            let (awaited, database, user) = (Awaited::Primary, &*key.database, &*key.user);
            let (code, text) = Overdue { awaited, limit, database, user, attempt: None }.error();
            self.fail_login(c, code, &text);
        }
    }

    /// Connects a client that wants to replicate to a node.
    fn open_tunnel(&mut self, c: usize, node: NodeId, tunnel: Box<Tunnel>) {
        let p = self.clients[c].pool;
        let index = self.servers.vacant_key();
        let token = self.token(Kind::Server, index);
        let mut server = Server::new(token, p, node, self.params.none().clone(), self.now);
        server.client = Some(c);
        server.tunnel = Some(tunnel);
        self.servers.insert(server);
        let pool = &mut self.pools[p];
        pool.servers += 1;
        self.metrics.servers.add(1);
        self.clients[c].at = At::Server(index as u32);
        match self.address(node) {
            Some(address) => self.effects.push(Effect::Connect { token, address }),
            None => self.tunnel_lost(index, "the node is no longer known"),
        }
    }

    fn replicates_from(&self, tunnel: &Tunnel) -> Option<NodeId> {
        let Some(name) = &tunnel.node else { return self.view.primary };
        self.view.nodes.iter().find(|node| node.node.name == *name).map(|node| node.node.id)
    }

    /// Ends the client's login, after the server has accepted its own.
    pub(in crate::core) fn tunnel_opened(&mut self, s: usize) {
        let server = &self.servers[s];
        let Some(c) = server.client else { return self.drop_server(s) };
        let reported = server.reported.clone();
        let replication = server.tunnel.as_ref().map_or(Replication::Physical, |tunnel| tunnel.replication);
        let Phase::Login(login) = &self.clients[c].phase else { return self.close_client(c) };
        let version = login.version;
        self.log_login(c);
        let (pid, secret) = self.cancel_key(c, version);
        self.write_client(c, |out| {
            message::authentication_ok(out);
            for (name, value) in &reported {
                message::parameter_status(out, name, value);
            }
            message::backend_key(out, pid, &secret);
            message::ready(out, message::Status::Idle);
        });
        let client = &mut self.clients[c];
        client.phase = Phase::Replicating(replication);
        self.runnable.push_back(client.token);
    }

    /// Bytes from a server go to the client as they are.
    pub(in crate::core) fn tunnel_received(&mut self, s: usize, bytes: &[u8]) {
        if let Some(c) = self.servers[s].client
            && !bytes.is_empty()
        {
            self.write_client(c, |out| out.extend_from_slice(bytes));
        }
    }

    /// Bytes from a client go to its server as they are.
    pub(in crate::core) fn tunnel_sent(&mut self, c: usize, bytes: &[u8]) {
        if let Some(s) = self.clients[c].at.server() {
            self.write_server(s, |out| out.extend_from_slice(bytes));
        }
    }

    /// Closes the client after its server connection was lost, or could not be made. The client gets no error of the proxy once bytes were passed on:
    /// an error may not stand in the middle of a message.
    pub(in crate::core) fn tunnel_lost(&mut self, s: usize, why: &str) {
        match self.servers[s].client {
            Some(c) if matches!(self.clients[c].phase, Phase::Login(_)) => {
                if let Some(last) = self.servers[s].fatal.take() {
                    return self.fail_login_as(c, &last.error);
                }
                let text = format!("no connection to the server: {why}");
                self.fail_login(c, Sqlstate::CONNECTION_FAILURE, &text);
            }
            Some(c) => self.close_client(c),
            None => self.drop_server(s),
        }
    }

    /// Drops the server connection of a client that has gone.
    pub(in crate::core) fn drop_tunnel(&mut self, s: usize) {
        self.servers[s].client = None;
        self.pools[self.servers[s].pool].tunnels -= 1;
        self.drop_server(s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_postgresqls() {
        for (value, expected) in [
            ("true", Ok(Some(Replication::Physical))),
            ("ON", Ok(Some(Replication::Physical))),
            ("1", Ok(Some(Replication::Physical))),
            ("database", Ok(Some(Replication::Logical))),
            ("false", Ok(None)),
            ("", Ok(None)),
            ("logical", Err(())),
        ] {
            assert_eq!(Replication::read(value), expected, "{value:?}");
        }
    }
}
