//! Selection of a replica's events: the first file, and the events to send. Pure decisions, without I/O, for each family of servers.

pub(super) mod mariadb;
pub(super) mod mysql;

use ::binlog::event::{self, BodyError, Checksum, Header};
use ::binlog::gtid::{self, State};

/// The events that a replica requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    MariaDb(mariadb::Request),
    /// The transactions that the replica has.
    MySql(gtid::mysql::Set),
}

impl Request {
    /// Returns the transactions that the replica has, as text.
    pub(super) fn has(&self) -> String {
        match self {
            Request::MariaDb(request) => request.position.to_string(),
            Request::MySql(set) => set.to_string(),
        }
    }

    /// Returns the end of the stream, as text; None for no end.
    pub(super) fn until(&self) -> Option<String> {
        match self {
            Request::MariaDb(request) => request.until.as_ref().map(|until| until.at.to_string()),
            Request::MySql(_) => None,
        }
    }
}

/// Reason to refuse a replica, with the messages of a source of its family: people and tools match on them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("Error: connecting slave requested to start from GTID {0}, which is not in the master's binlog")]
    NotHere(gtid::mariadb::Gtid),
    #[error(
        "Error: connecting slave requested to start from GTID {0}, which is not in the master's binlog. Since the master's binlog contains GTIDs \
         with higher sequence numbers, it probably means that the slave has diverged due to executing extra erroneous transactions"
    )]
    Diverged(gtid::mariadb::Gtid),
    #[error(
        "The binlog on the master is missing the GTID {0} requested by the slave (even though both a prior and a subsequent sequence number does \
         exist), and GTID strict mode is enabled"
    )]
    Hole(gtid::mariadb::Gtid),
    #[error(
        "Could not find GTID state requested by slave in any binlog files. Probably the slave state is too old and required binlog files have \
         been purged."
    )]
    Purged,
    #[error("Slave can not handle replication events with the checksum that master is configured to log")]
    Checksum,
    #[error(
        "Replica has more GTIDs than the source has, using the source's SERVER_UUID. This may indicate that the end of the binary log was truncated or \
         that the last binary log file was lost, e.g., after a power or disk failure when sync_binlog != 1. The replica has {0}, which this relay lacks"
    )]
    More(gtid::mysql::Set),
    #[error(
        "Cannot replicate because the source purged required binary logs. Replicate the missing transactions from elsewhere, or provision a new replica \
         from backup. The GTID set sent by the replica is '{has}', and the oldest binary log of this relay begins after '{begins}'"
    )]
    PurgedBehind { has: gtid::mysql::Set, begins: gtid::mysql::Set },
    #[error(
        "Cannot replicate anonymous transaction when AUTO_POSITION = 1: the source had gtid_mode = OFF when it wrote it"
    )]
    Anonymous,
}

/// Decision about an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Send,
    Skip,
    /// Undecided without the beginning of the event's body: [`Feed::transaction`].
    Look,
    /// The stream ends before the event.
    Stop,
}

/// Reason why no decision about an event is possible.
#[derive(Debug, thiserror::Error)]
pub(super) enum FeedError {
    #[error("{0}")]
    Body(#[from] BodyError),
    #[error("{0}")]
    Refused(#[from] Refused),
}

/// Returns the file from which `request` is served, given the files' beginnings (oldest first): the last one that begins at or before its position.
/// `state`: the transactions of all files. Removes from the request the ends that lie before their beginning.
pub(super) fn first_file<'a>(
    begins: impl DoubleEndedIterator<Item = (usize, &'a State)> + Clone,
    state: &State,
    request: &mut Request,
) -> Result<usize, Refused> {
    match (request, state) {
        (Request::MariaDb(request), State::MariaDb(state)) => {
            let of = |(file, begins): (usize, &'a State)| match begins {
                State::MariaDb(begins) => Some((file, begins)),
                State::MySql(_) => None,
            };
            mariadb::first_file(begins.filter_map(of), state, request)
        }
        (Request::MySql(set), State::MySql(state)) => {
            let of = |(file, begins): (usize, &'a State)| match begins {
                State::MySql(begins) => Some((file, begins)),
                State::MariaDb(_) => None,
            };
            mysql::first_file(begins.filter_map(of), state, set)
        }
        // The dialect of the log decides which requests are made.
        _ => Err(Refused::Purged),
    }
}

/// Progress of one replica through the events of one epoch.
#[derive(Debug)]
pub(super) enum Feed {
    MariaDb(mariadb::Feed),
    MySql(mysql::Feed),
}

impl Feed {
    /// Starts to serve `request` with a file that begins at `begins`. `state`: the transactions of the log. None: they are of different families.
    pub(super) fn new(request: Request, begins: &State, state: &State) -> Option<Feed> {
        match (request, begins, state) {
            (Request::MariaDb(request), State::MariaDb(begins), State::MariaDb(state)) => {
                Some(Feed::MariaDb(mariadb::Feed::new(request, begins, state)))
            }
            (Request::MySql(set), ..) => Some(Feed::MySql(mysql::Feed::new(set))),
            _ => None,
        }
    }

    /// Returns the part of the request that is not served yet.
    pub(super) fn request(&self) -> Request {
        match self {
            Feed::MariaDb(feed) => Request::MariaDb(feed.request().clone()),
            Feed::MySql(feed) => Request::MySql(feed.has().clone()),
        }
    }

    /// True if the stream ends after the transaction that was sent last.
    pub(super) fn ends(&self) -> bool {
        match self {
            Feed::MariaDb(feed) => feed.ends(),
            Feed::MySql(_) => false,
        }
    }

    /// Returns the event that ends a stream which [`Feed::ends`] at `offset`.
    pub(super) fn last_event(&self, server_id: u32, offset: u64, checksum: Checksum) -> Vec<u8> {
        match self {
            Feed::MariaDb(feed) => event::until_reached(server_id, offset, feed.passed(), checksum),
            Feed::MySql(_) => Vec::new(),
        }
    }

    /// Decides about an event by its header.
    pub(super) fn header(&mut self, header: &Header) -> Verdict {
        match self {
            Feed::MariaDb(feed) => feed.header(header),
            Feed::MySql(feed) => feed.header(header),
        }
    }

    /// Decides about a transaction at its beginning. `log`: the current transactions of the log.
    pub(super) fn transaction(
        &mut self,
        header: &Header,
        body: &[u8],
        log: impl Fn() -> State,
    ) -> Result<Verdict, FeedError> {
        match self {
            Feed::MariaDb(feed) => feed.transaction(header, body, || match log() {
                State::MariaDb(state) => state,
                State::MySql(_) => gtid::mariadb::State::default(),
            }),
            Feed::MySql(feed) => feed.transaction(header, body),
        }
    }
}
