//! Runs a session in both worlds, step by step, and compares them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kingpost_tests::Kingpost;

use crate::before::Before;
use crate::compare::{Compared, Mismatch, Oids, compare};
use crate::config::{Config, Functions, Needs};
use crate::operator::{Operated, Operator};
use crate::reply::Reply;
use crate::rules::{Allowed, Scene};
use crate::session::{Client, Message, Packet, Session, Step, Way, client_name};
use crate::wire::Wire;
use crate::world::{Crashed, POOLED, Proxy, Worlds};

/// Time limit of PostgreSQL's answer. A busy machine takes a second for an answer that usually takes a millisecond.
const ANSWER: Duration = Duration::from_secs(8);

/// Channels of the sessions' notifications.
const CHANNELS: [&str; 2] = ["ch1", "ch2"];

/// Time in which locks that may belong to others must disappear.
const OTHERS: Duration = Duration::from_millis(300);

/// Time limits for the proxy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// For an answer.
    pub(crate) answer: Duration,
    /// For notifications, and for locks of clients that have left.
    pub(crate) follows: Duration,
}

impl Patience {
    /// For judging.
    pub(crate) const LONG: Patience = Patience { answer: Duration::from_secs(6), follows: Duration::from_secs(4) };
    /// For shrinking: a wrong verdict only leaves the session longer than necessary.
    pub(crate) const SHORT: Patience =
        Patience { answer: Duration::from_millis(1500), follows: Duration::from_secs(1) };
}

/// Replies to one client in one step, in both worlds.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    /// Title of the exchange in the report.
    pub(crate) title: String,
    pub(crate) direct: Vec<Reply>,
    pub(crate) proxied: Vec<Reply>,
}

/// A difference that no rule covers.
#[derive(Debug, Clone)]
pub(crate) struct Difference {
    /// Kind of the difference, which shrinking keeps.
    pub(crate) kind: String,
    /// The exchanges up to the difference, which is in the last one.
    pub(crate) exchanges: Vec<Exchange>,
    /// Number of equal replies at the start of the last exchange.
    pub(crate) at: usize,
    /// The step in which it was found.
    pub(crate) step: usize,
}

/// Result of a session.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// Both worlds replied the same, or a rule covers the difference.
    Alike,
    /// The worlds differ.
    Differs(Box<Difference>),
    /// More clients kept server connections than the pool has: no verdict.
    Starved,
    /// PostgreSQL has crashed without the proxy, too: the session is unusable.
    Crashed,
    /// PostgreSQL itself did not answer as the tester expects, or could not be prepared: the session is unusable.
    Invalid(String),
}

/// Reason to end a session before its last step.
enum Stop {
    Over,
    Differs(Box<Difference>),
    Starved,
    Invalid(String),
}

impl<E: std::fmt::Debug> From<E> for Stop
where
    E: std::error::Error,
{
    fn from(error: E) -> Stop {
        Stop::Invalid(format!("{error:?}"))
    }
}

/// Actions of one session.
#[derive(Default)]
struct Did {
    /// The proxy's counters.
    counters: BTreeMap<&'static str, u64>,
    operated: Operated,
    /// True if a server has crashed.
    crashed: bool,
}

/// One client's connections.
struct Pair {
    direct: Wire,
    proxied: Wire,
}

struct Run<'a> {
    worlds: &'a Worlds,
    session: &'a Session,
    config: &'a Config,
    allowed: &'a mut Allowed,
    patience: Patience,
    proxy: &'a Kingpost,
    pairs: Vec<Option<Pair>>,
    /// Process IDs of ended connections, directly and through the proxy, with the client of each.
    former: Vec<(usize, (u32, u32))>,
    oids: Oids,
    exchanges: Vec<Exchange>,
    step: usize,
    /// True if one client listens and one notifies.
    notifies: bool,
    /// Clients that call functions which leave state that may be lost.
    excused: Vec<bool>,
    operator: Operator<'a>,
}

/// Both worlds, and the statistics of all sessions.
#[derive(Debug)]
pub(crate) struct Runner {
    worlds: Worlds,
    needs: Needs,
    strict: bool,
    /// Number of uses of each rule.
    pub(crate) used: BTreeMap<&'static str, u64>,
    /// Actions that the proxy reports, by configuration: counters of `Config::proof`.
    pub(crate) did: BTreeMap<(&'static str, &'static str), u64>,
    /// Actions of the operator.
    pub(crate) operated: Operated,
}

impl Runner {
    /// Starts the servers that some configurations need. `strict`: no difference is intended.
    pub(crate) async fn start(needs: Needs, strict: bool) -> Runner {
        Runner {
            worlds: Worlds::start(needs).await,
            needs,
            strict,
            used: BTreeMap::new(),
            did: BTreeMap::new(),
            operated: Operated::default(),
        }
    }

    /// Runs a session with its own proxy. Crashed servers are replaced.
    async fn once(&mut self, session: &Session, config: &Config, patience: Patience) -> (Outcome, Allowed, Did) {
        let (mut allowed, mut did) = (Allowed::new(self.strict), Did::default());
        let outcome = run(&mut self.worlds, session, config, &mut allowed, patience, &mut did).await;
        if did.crashed {
            self.worlds = Worlds::start(self.needs).await;
        }
        (outcome, allowed, did)
    }

    /// Runs a session with its own proxy, and records the statistics.
    pub(crate) async fn judge(&mut self, session: &Session, config: &Config) -> Outcome {
        let (outcome, allowed, did) = self.once(session, config, Patience::LONG).await;
        for (rule, count) in allowed.used {
            *self.used.entry(rule).or_default() += count;
        }
        self.operated = self.operated.and(did.operated);
        for (counter, count) in did.counters {
            *self.did.entry((config.name, counter)).or_default() += count;
        }
        outcome
    }

    /// Runs a session that is being shrunk: with shorter time limits, and without statistics.
    pub(crate) async fn attempt(&mut self, session: &Session, config: &Config) -> Outcome {
        self.once(session, config, Patience::SHORT).await.0
    }
}

async fn run(
    worlds: &mut Worlds,
    session: &Session,
    config: &Config,
    allowed: &mut Allowed,
    patience: Patience,
    did: &mut Did,
) -> Outcome {
    let proxy: Proxy = match worlds.begin(session, config).await {
        Ok(proxy) => proxy,
        Err(error) => {
            did.crashed = worlds.crashed().await.is_some();
            return match did.crashed {
                true => Outcome::Crashed,
                false => Outcome::Invalid(format!("the worlds cannot be prepared: {error:?}")),
            };
        }
    };
    let has = |word: &str| session.texts().any(|text| text.to_ascii_lowercase().contains(word));
    let mut run = Run {
        worlds,
        session,
        config,
        allowed,
        patience,
        proxy: &proxy.kingpost,
        pairs: session.clients.iter().map(|_| None).collect(),
        former: Vec::new(),
        oids: Oids::default(),
        exchanges: Vec::new(),
        step: 0,
        notifies: has("listen") && (has("notify") || has("tell(")),
        excused: excused(session, config),
        operator: Operator::of(&proxy.kingpost),
    };
    let mut ended = run.all().await;
    did.operated = run.operator.did;
    if let Some(line) = proxy.broken() {
        run.take_back(ended);
        let title = format!("(the proxy's log) {line}");
        let said = vec![Reply::Row(vec![Some(line.into())])];
        run.exchanges.push(Exchange { title, direct: Vec::new(), proxied: said });
        ended = Err(run.differs_as("panic"));
    }
    if !config.proof.is_empty() && proxy.kingpost.process().exit_status().is_none() {
        let metrics = proxy.kingpost.metrics().await;
        for counter in config.proof {
            did.counters.insert(counter, metrics.sum(&format!("kingpost_{counter}_total"), &[]) as u64);
        }
    }
    if let Err(Stop::Differs(_) | Stop::Invalid(_)) = ended
        && let Some(crashed) = run.worlds.crashed().await
    {
        did.crashed = true;
        if crashed == Crashed::Direct {
            return Outcome::Crashed;
        }
        run.take_back(ended);
        ended = Err(run.differs_as("crash of PostgreSQL behind the proxy"));
    }
    match ended {
        Ok(()) | Err(Stop::Over) => Outcome::Alike,
        Err(Stop::Starved) => Outcome::Starved,
        Err(Stop::Differs(difference)) => Outcome::Differs(difference),
        Err(Stop::Invalid(reason)) => Outcome::Invalid(reason),
    }
}

/// Texts that leave state in the session which none of their words shows.
const LEAVES: [&str; 4] = ["enter(", "scratch(", "take(", "do $$"];

fn excused(session: &Session, config: &Config) -> Vec<bool> {
    let mut excused = vec![false; session.clients.len()];
    if config.functions == Functions::Lost {
        for packet in session.steps.iter().flat_map(Step::packets) {
            let leaves = |text: &str| LEAVES.iter().any(|call| text.contains(call));
            excused[packet.client] |= packet.messages.iter().filter_map(Message::sql).any(leaves);
        }
    }
    excused
}

/// Returns the direct login of a client that gives it the session which the proxy should give it.
fn as_directly(spec: &Client, config: &Config) -> Client {
    if !config.takes_role || spec.past {
        return spec.clone();
    }
    let mut parameters = spec.parameters.clone();
    parameters.push(("role".into(), spec.user.clone()));
    Client { user: POOLED.into(), parameters, ..spec.clone() }
}

impl Run<'_> {
    async fn all(&mut self) -> Result<(), Stop> {
        for (index, step) in self.session.steps.iter().enumerate() {
            self.step = index;
            match step {
                Step::Send(packet) => self.send(std::slice::from_ref(packet)).await?,
                Step::Together(packets) => self.send(packets).await?,
                Step::Reconnect(client) => {
                    self.operator.resume().await?;
                    self.leave(*client).await?;
                    self.login(*client).await?;
                }
                Step::End(packet, way) => {
                    self.operator.resume().await?;
                    self.ends(packet, *way).await?;
                }
                Step::Operate(order) => self.operator.order(*order, &self.worlds.proxied).await?,
            }
            self.notifications().await?;
            if self.config.waits && !self.worlds.proxied.catch_up().await? {
                return Err(Stop::Invalid("somebody reads on the replica what is to change there".into()));
            }
        }
        self.step = self.session.steps.len();
        self.operator.resume().await?;
        self.end().await
    }

    async fn login(&mut self, client: usize) -> Result<(), Stop> {
        let spec = &self.session.clients[client];
        let port = if spec.past { self.worlds.proxied.port() } else { self.proxy.port() };
        let directly = as_directly(spec, self.config);
        let (direct, proxied) =
            tokio::join!(Wire::login(self.worlds.direct.port(), &directly, ANSWER), Wire::login(port, spec, ANSWER));
        let (direct, one) = direct?;
        let Ok((proxied, other)) = proxied else {
            let title = format!("({} connects)", client_name(client));
            self.exchanges.push(Exchange { title, direct: one, proxied: vec![Reply::Closed] });
            return Err(self.differs_as("no connection"));
        };
        self.pairs[client] = Some(Pair { direct, proxied });
        self.compare(client, "(connects)".into(), one, other).await?;
        self.parameters(client).await
    }

    /// Has clients send their packets, all at once, and collects the answers.
    async fn send(&mut self, packets: &[Packet]) -> Result<(), Stop> {
        for packet in packets {
            let closed = |pair: &Pair| pair.direct.is_closed() && pair.proxied.is_closed();
            if self.pairs[packet.client].as_ref().is_none_or(closed) {
                self.operator.resume().await?;
                self.login(packet.client).await?;
            }
        }
        for packet in packets {
            let Some(pair) = &mut self.pairs[packet.client] else { continue };
            tokio::join!(pair.direct.send(&packet.messages), pair.proxied.send(&packet.messages));
        }
        for packet in packets {
            let Some(pair) = &mut self.pairs[packet.client] else { continue };
            let (direct, proxied) = if self.operator.has_paused() {
                self.operator.did.sent_paused += packets.len() as u64;
                let direct = pair.direct.settle(ANSWER).await;
                self.operator.resume().await?;
                (direct, pair.proxied.settle(self.patience.answer).await)
            } else {
                tokio::join!(pair.direct.settle(ANSWER), pair.proxied.settle(self.patience.answer))
            };
            let ready = direct.iter().any(|reply| matches!(reply, Reply::Ready(_)));
            let end = if self.step == self.session.steps.len() { "(at the end) " } else { "" };
            self.compare(packet.client, format!("{end}{packet}"), direct, proxied).await?;
            if ready {
                self.parameters(packet.client).await?;
            }
        }
        Ok(())
    }

    async fn compare(
        &mut self,
        client: usize,
        title: String,
        direct: Vec<Reply>,
        proxied: Vec<Reply>,
    ) -> Result<(), Stop> {
        if direct.contains(&Reply::Silence) {
            return Err(Stop::Invalid(format!("no answer from PostgreSQL itself: {title}; came: {direct:?}")));
        }
        let compared = if self.excused[client] {
            foreign(client, &direct, &proxied).map_or(Compared::Alike, |seen| Compared::Differ(Box::new(seen)))
        } else {
            let spec = &self.session.clients[client];
            let before = self.before(client);
            let mut scene = Scene { before, ..Scene::new(&mut self.oids, &spec.database, self.config) };
            compare(&mut scene, self.allowed, &direct, &proxied)
        };
        // An exchange outside of answers is recorded only if it differs.
        if compared != Compared::Alike || !title.starts_with('(') {
            self.exchanges.push(Exchange { title, direct, proxied });
        }
        match compared {
            Compared::Alike => Ok(()),
            Compared::Over => Err(Stop::Over),
            Compared::Differ(mismatch) => {
                let refused = matches!(&mismatch.proxied, Some(Reply::Error(fields)) if fields.code() == "53300");
                if refused && self.is_starved(client).await { Err(Stop::Starved) } else { Err(self.differs(&mismatch)) }
            }
        }
    }

    /// Returns the facts of the steps so far, including this one, that matter to rules.
    fn before(&self, client: usize) -> Before {
        let open = self.pairs[client].as_ref().is_none_or(|pair| !pair.direct.is_idle());
        let others = |holds: fn(&Wire) -> bool| {
            let mut others = self.pairs.iter().enumerate().filter(|(other, _)| *other != client);
            others.any(|(_, pair)| pair.as_ref().is_some_and(|pair| holds(&pair.direct)))
        };
        let (others_unfinished, others_prepare) = (others(Wire::is_unfinished), others(Wire::only_prepares));
        Before {
            others_unfinished,
            others_prepare,
            ..Before::of(self.session, self.step, client, (open, self.config.takes_role))
        }
    }

    fn differs(&mut self, mismatch: &Mismatch) -> Stop {
        Stop::Differs(Box::new(Difference {
            kind: mismatch.kind(),
            exchanges: std::mem::take(&mut self.exchanges),
            at: mismatch.at,
            step: self.step,
        }))
    }

    /// True if the other clients of the pool may keep all of its connections.
    async fn is_starved(&self, client: usize) -> bool {
        let pinned = self.proxy.metrics().await.sum("kingpost_clients_pinned", &[]) as usize;
        let open = |pair: &Option<Pair>| pair.as_ref().is_some_and(|pair| !pair.direct.is_idle());
        let others = self.pairs.iter().enumerate().filter(|(index, pair)| *index != client && open(pair)).count();
        pinned + others >= self.session.pool
    }

    /// Compares the parameters reported to the client.
    async fn parameters(&mut self, client: usize) -> Result<(), Stop> {
        let Some(pair) = &self.pairs[client] else { return Ok(()) };
        if self.excused[client] {
            return Ok(());
        }
        let mut names: Vec<&String> = pair.direct.parameters.keys().chain(pair.proxied.parameters.keys()).collect();
        names.sort();
        names.dedup();
        let told = |wire: &Wire, name: &String| {
            wire.parameters.get(name).map(|value| Reply::Parameter(name.clone(), value.clone()))
        };
        let pairs: Vec<(Option<Reply>, Option<Reply>)> =
            names.into_iter().map(|name| (told(&pair.direct, name), told(&pair.proxied, name))).collect();
        for (direct, proxied) in pairs.into_iter().filter(|(direct, proxied)| direct != proxied) {
            let title = format!("({}: parameters as reported)", client_name(client));
            self.compare(client, title, direct.into_iter().collect(), proxied.into_iter().collect()).await?;
        }
        Ok(())
    }

    /// Waits until every idle client has received in the proxy's world the notifications of the direct one.
    async fn notifications(&mut self) -> Result<(), Stop> {
        if !self.notifies {
            return Ok(());
        }
        for client in 0..self.pairs.len() {
            let Some(pair) = &mut self.pairs[client] else { continue };
            if !pair.direct.is_idle() || !pair.proxied.is_idle() {
                continue;
            }
            // The notifying client has been answered, so the signal was sent; PostgreSQL handles it before its ReadyForQuery.
            pair.direct.send(&[Message::Sync]).await;
            pair.direct.settle(ANSWER).await;
            let expected = pair.direct.notifications.len();
            let odd = pair.proxied.listen(self.patience.follows, |wire| wire.notifications.len() >= expected).await;
            let (mut direct, mut proxied) =
                (std::mem::take(&mut pair.direct.notifications), std::mem::take(&mut pair.proxied.notifications));
            proxied.extend(odd);
            if direct.is_empty() && proxied.is_empty() {
                continue;
            }
            let current =
                self.pairs.iter().enumerate().filter_map(|(client, pair)| Some((client, processes(pair.as_ref()?))));
            let all: Vec<(usize, (u32, u32))> = current.chain(self.former.iter().copied()).collect();
            rename(&mut direct, &all.iter().map(|(client, pair)| (*client, pair.0)).collect::<Vec<_>>());
            rename(&mut proxied, &all.iter().map(|(client, pair)| (*client, pair.1)).collect::<Vec<_>>());
            self.compare(client, format!("({}: notifications)", client_name(client)), direct, proxied).await?;
        }
        Ok(())
    }

    /// A client sends a packet, and ends. It gets the outstanding replies, and the connection is closed.
    async fn ends(&mut self, packet: &Packet, way: Way) -> Result<(), Stop> {
        let client = packet.client;
        let closed = |pair: &Pair| pair.direct.is_closed() && pair.proxied.is_closed();
        if self.pairs[client].as_ref().is_none_or(closed) {
            self.login(client).await?;
        }
        let Some(pair) = &mut self.pairs[client] else { return Ok(()) };
        tokio::join!(pair.direct.end(&packet.messages, way), pair.proxied.end(&packet.messages, way));
        if way != Way::Reset {
            let (limit, patience) = (ANSWER, self.patience.answer);
            let (mut direct, mut proxied) = tokio::join!(pair.direct.settle(limit), pair.proxied.settle(patience));
            // PostgreSQL runs messages without a Sync or Flush after them, and may or may not reply.
            let unfinished = pair.direct.is_unfinished();
            let (mut one, mut other) = tokio::join!(pair.direct.rest(limit), pair.proxied.rest(patience));
            if unfinished {
                one.retain(|reply| matches!(reply, Reply::Closed | Reply::Silence));
                other.retain(|reply| matches!(reply, Reply::Closed | Reply::Silence));
            }
            direct.append(&mut one);
            proxied.append(&mut other);
            self.compare(client, Step::End(packet.clone(), way).to_string(), direct, proxied).await?;
        }
        let Some(pair) = self.pairs[client].take() else { return Ok(()) };
        let process = pair.direct.process;
        self.former.push((client, processes(&pair)));
        drop(pair);
        self.left(client, process).await
    }

    /// A client terminates its connection.
    async fn leave(&mut self, client: usize) -> Result<(), Stop> {
        let Some(pair) = self.pairs[client].take() else { return Ok(()) };
        let process = pair.direct.process;
        self.former.push((client, processes(&pair)));
        tokio::join!(pair.direct.terminate(), pair.proxied.terminate());
        self.left(client, process).await
    }

    /// A client has left, with this process directly. Its locks are released before any other client continues.
    async fn left(&mut self, client: usize, process: u32) -> Result<(), Stop> {
        if process != 0 {
            self.worlds.direct.wait_gone(process).await?;
        }
        // The resources of clients in the middle of a unit may differ: statements are prepared elsewhere, units are kept. So may a lock that a
        // function has taken for a client whose own state may be lost: the first to request it has it, and only PostgreSQL runs a unit before its
        // end.
        let idle = |pair: &Pair| pair.direct.is_idle() && pair.proxied.is_idle();
        let mut others = self.pairs.iter().zip(&self.excused);
        let alone = others.all(|(pair, excused)| pair.as_ref().is_none_or(|pair| idle(pair) && !excused));
        let end = Instant::now() + if alone { self.patience.follows } else { OTHERS };
        loop {
            let direct = self.worlds.direct.locks().await?;
            let mut left = self.worlds.proxied.locks().await?;
            left.retain(|lock| !direct.contains(lock));
            if left.is_empty() || (!alone && Instant::now() > end) {
                return Ok(());
            }
            if Instant::now() > end {
                let as_row =
                    |lines: Vec<String>| lines.into_iter().map(|line| Reply::Row(vec![Some(line.into())])).collect();
                let title = format!("({} has left: locks of clients)", client_name(client));
                self.exchanges.push(Exchange { title, direct: as_row(direct), proxied: as_row(left) });
                return Err(self.differs_as("locks"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Restores the exchanges of a difference that a worse one replaces.
    fn take_back(&mut self, ended: Result<(), Stop>) {
        if let Err(Stop::Differs(difference)) = ended {
            self.exchanges = difference.exchanges;
        }
    }

    fn differs_as(&mut self, kind: &str) -> Stop {
        let exchanges = std::mem::take(&mut self.exchanges);
        Stop::Differs(Box::new(Difference { kind: kind.into(), exchanges, at: 0, step: self.step }))
    }

    /// Makes sure that all outstanding notifications have arrived: a client of each database and user begins to listen, and the last notification
    /// reaches it by the same way as earlier ones.
    async fn last_notifications(&mut self) -> Result<(), Stop> {
        if !self.notifies {
            return Ok(());
        }
        let mut witnesses: Vec<(&Client, Wire, Wire)> = Vec::new();
        for spec in self.session.clients.iter().filter(|spec| !spec.past) {
            if witnesses.iter().any(|(known, ..)| (&known.user, &known.database) == (&spec.user, &spec.database)) {
                continue;
            }
            let plain = Client { parameters: Vec::new(), ..spec.clone() };
            let directly = as_directly(&plain, self.config);
            let (direct, proxied) = tokio::join!(
                Wire::login(self.worlds.direct.port(), &directly, ANSWER),
                Wire::login(self.proxy.port(), &plain, self.patience.answer)
            );
            let ((mut direct, _), (mut proxied, _)) = (direct?, proxied?);
            let listen = [Message::Query(CHANNELS.map(|channel| format!("listen {channel}")).join("; "))];
            tokio::join!(direct.send(&listen), proxied.send(&listen));
            tokio::join!(direct.settle(ANSWER), proxied.settle(self.patience.answer));
            if proxied.status == b'I' {
                witnesses.push((spec, direct, proxied));
            }
        }
        let (direct, proxied) =
            tokio::join!(self.worlds.direct.notify(&CHANNELS), self.worlds.proxied.notify(&CHANNELS));
        direct.and(proxied)?;
        for (_, _, proxied) in &mut witnesses {
            proxied.listen(self.patience.follows, |wire| wire.notifications.len() >= CHANNELS.len()).await;
        }
        self.notifications().await
    }

    /// Ends all clients, and compares the contents of both databases.
    async fn end(&mut self) -> Result<(), Stop> {
        self.last_notifications().await?;
        for client in 0..self.pairs.len() {
            let Some(pair) = &self.pairs[client] else { continue };
            if !pair.direct.is_closed() {
                let mut messages = Vec::new();
                if pair.direct.is_copying() {
                    messages.push(Message::CopyFail("the end".into()));
                }
                messages.push(Message::Sync);
                let packet = Packet { client, messages };
                self.send(&[packet]).await?;
            }
            self.leave(client).await?;
        }
        let (direct, proxied) = tokio::join!(self.worlds.direct.dump(), self.worlds.proxied.dump());
        let (direct, proxied) = (direct?, proxied?);
        if direct == proxied {
            return Ok(());
        }
        let only = |one: &[String], other: &[String]| -> Vec<Reply> {
            let lines = one.iter().filter(|line| !other.contains(line)).cloned();
            lines.map(|line| Reply::Row(vec![Some(line.into())])).collect()
        };
        let title = "(what the databases hold at the end, as far as it differs)".to_owned();
        let (only_direct, only_proxied) = (only(&direct, &proxied), only(&proxied, &direct));
        self.exchanges.push(Exchange { title, direct: only_direct, proxied: only_proxied });
        Err(self.differs_as("databases"))
    }
}

fn processes(pair: &Pair) -> (u32, u32) {
    (pair.direct.process, pair.proxied.process)
}

/// Replaces the process ID of a connection, or of an earlier one of the client, by the client's number, counted from 1; 0: no client's.
fn rename(replies: &mut [Reply], processes: &[(usize, u32)]) {
    for reply in replies {
        if let Reply::Notification { process, .. } = reply {
            let known = processes.iter().find(|(_, known)| known == process);
            *process = known.map_or(0, |(client, _)| *client as u32 + 1);
        }
    }
}

/// Finds another client's value in an answer to a client whose own state may be lost: a value with another client's mark (`ta` is that of client `a`)
/// that PostgreSQL did not return.
fn foreign(client: usize, direct: &[Reply], proxied: &[Reply]) -> Option<Mismatch> {
    let is_mark = |value: &[u8]| matches!(value, [b't', letter @ b'a'..=b'z'] if *letter != b'a' + client as u8);
    let has_mark = |reply: &Reply| match reply {
        Reply::Row(values) => values.iter().flatten().any(|value| is_mark(value)),
        _ => false,
    };
    let at = proxied.iter().position(|reply| has_mark(reply) && !direct.contains(reply))?;
    Some(Mismatch { at, direct: direct.get(at).cloned(), proxied: proxied.get(at).cloned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_of_another_client_is_found() {
        let row = |value: &str| Reply::Row(vec![Some(value.into())]);
        let found = |direct: &[Reply], proxied: &[Reply]| foreign(0, direct, proxied).is_some();
        assert!(!found(&[row("ta")], &[row("")]), "lost");
        assert!(!found(&[row("")], &[row("ta")]), "its own");
        assert!(found(&[row("")], &[row("tb")]));
        assert!(!found(&[row("tb")], &[row("tb")]), "what everybody sees");
        assert!(!found(&[row("")], &[row("tbx")]), "no mark");
    }

    #[test]
    fn processes_are_named_by_their_client() {
        let notification = |process| Reply::Notification { process, channel: "c".into(), payload: String::new() };
        let mut replies = vec![notification(7), notification(9), notification(4)];
        rename(&mut replies, &[(0, 5), (1, 7), (0, 4)]);
        assert_eq!(replies, [notification(2), notification(0), notification(1)]);
    }
}
